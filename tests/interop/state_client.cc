// Reads the optimizer files of a Megatron checkpoint and writes them again, each rank in a thread:
//
//     state_client MODEL SOURCE TARGET SIZE
//
// MODEL has a line per parameter in model order: its name and its sizes. SOURCE and TARGET hold a
// layer_wise_optimizer_{rank}.pt per rank. Beside them TARGET gets what was loaded by name, as raw
// fp32: RANK.NAME.master, RANK.NAME.exp_avg, ...
#include <optim/layer_wise_optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ATen/ops/zeros.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::vector<optim::Param> read_model(const fs::path& file) {
  std::vector<optim::Param> params;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    optim::Param param;
    words >> param.info.name;
    for (int64_t size = 0; words >> size;) param.info.shape.push_back(size);
    param.info.attributes = optim::megatron_attributes(param.info.name, param.info.shape.size());
    param.info.dtype = ckpt::DType::BFloat16;
    param.param = at::zeros(param.info.shape, at::kBFloat16);
    params.push_back(std::move(param));
  }
  return params;
}

optim::OptimizerConfig config_of_the_cases() {
  optim::OptimizerConfig config;
  config.optimizer = "muon";
  config.muon_split_qkv = false;
  config.muon_momentum = 0.9;
  config.bf16 = true;
  config.lr = 0.01;
  config.min_lr = 0.001;
  config.weight_decay = 0.1;
  config.use_layer_wise_distributed_optimizer = true;
  return config;
}

void write_values(const fs::path& file, const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  std::ofstream(file, std::ios::binary)
      .write(static_cast<const char*>(values.const_data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
}

struct Job {
  fs::path model, source, target;
};

void pass_on(const Job& job, int rank, const optim::ProcessGroupCollection& groups) {
  optim::MegatronOptimizerOptions options;
  options.groups = groups;
  const auto optimizer =
      optim::get_megatron_optimizer(config_of_the_cases(), read_model(job.model), options);
  const std::string name = "layer_wise_optimizer_" + std::to_string(rank) + ".pt";
  optimizer->load_state_dict_from_file(job.source / name);
  for (const optim::OptimizedParam* const param : optimizer->get_parameters()) {
    const std::string prefix = std::to_string(rank) + "." + param->model.info.name + ".";
    write_values(job.target / (prefix + "master"), optim::master_of(*param));
    for (const auto& [state, tensor] : optim::state_of(*param)) {
      write_values(job.target / (prefix + state), tensor);
    }
  }
  optimizer->save_state_dict_to_file(job.target / name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: state_client MODEL SOURCE TARGET SIZE\n";
    return 2;
  }
  const Job job = {argv[1], argv[2], argv[3]};
  const auto groups =
      optim::make_in_process_groups(std::stoi(argv[4]), {.network_interface = "lo"});
  std::vector<std::string> errors(groups.size());
  std::vector<std::jthread> ranks;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        pass_on(job, static_cast<int>(rank), groups[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::jthread& rank : ranks) rank.join();
  int failed = 0;
  for (const std::string& error : errors) {
    if (error.empty()) continue;
    std::cerr << error << '\n';
    failed = 1;
  }
  return failed;
}
