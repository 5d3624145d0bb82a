// Replayed steps as traces: one for each parameter group.
#include <replay/trace.h>

#include <ckpt/error.h>
#include <ckpt/staging.h>
#include <optim/rule_table.h>
#include <array>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "restored_optimizer.h"
#include "rules/refuse_key.h"
#include "trace_rule.h"

namespace optim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void require_written(const std::ofstream& file, const fs::path& path) {
  if (file) return;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = path.string()}, "cannot be written");
}

// One safetensors file of float32 tensors, whose names and shapes are known before their values.
class SafetensorsWriter {
 public:
  using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  // This and what follows throws IoFailure where the file cannot be written.
  SafetensorsWriter(fs::path file, const Shapes& shapes)
      : path_(std::move(file)), file_(path_, std::ios::binary) {
    json header;
    int64_t end = 0;
    for (const auto& [name, shape] : shapes) {
      int64_t count_bytes = sizeof(float);
      for (const int64_t size : shape) count_bytes *= size;
      header[name] = {
          {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {end, end + count_bytes}}};
      places_[name] = end;
      end += count_bytes;
    }
    std::string text = header.dump();
    constexpr size_t kAlignment = 8;
    text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
    const uint64_t length = text.size();
    file_.write(reinterpret_cast<const char*>(&length), sizeof length);
    file_.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (auto& [name, place] : places_) place += static_cast<int64_t>(sizeof length + text.size());
    require_written(file_, path_);
  }

  // A tensor of the list, in any order.
  void write(const std::string& name, const at::Tensor& tensor) {
    const at::Tensor values = tensor.to(at::kCPU, at::kFloat).contiguous();
    file_.seekp(places_.at(name));
    file_.write(static_cast<const char*>(values.const_data_ptr()),
                static_cast<std::streamsize>(values.nbytes()));
    require_written(file_, path_);
  }

  void finish() {  // all were written
    file_.close();
    require_written(file_, path_);
  }

 private:
  fs::path path_;
  std::ofstream file_;
  std::map<std::string, int64_t> places_;  // where the bytes of each begin
};

// The trace of a group that has parameters.
class GroupTrace {
 public:
  GroupTrace(OptimizerGroup& group, const fs::path& file, int64_t steps)
      : group_(group),
        file_(file),
        config_(trace_config(group.rule_config)),
        tensors_(fs::path(file).replace_extension(".safetensors"), shapes(steps)) {
    for (const OptimizedParam& param : group_.params) {
      tensors_.write("init." + param.model.info.name, master_of(param));
      for (const auto& [state, value] : param.state) {
        tensors_.write("start." + state + "." + param.model.info.name, value);
      }
    }
  }

  void before_update(int64_t step) {
    rates_.push_back({group_.lr, group_.weight_decay});
    for (const OptimizedParam& param : group_.params) {
      tensors_.write(grad_key(step, param.model.info.name), param.grad);
    }
  }

  void after_update(int64_t step) {
    for (const OptimizedParam& param : group_.params) {
      const std::string& name = param.model.info.name;
      tensors_.write(step_key(step, "param", name), master_of(param));
      for (const auto& [state, value] : param.state) {
        tensors_.write(step_key(step, state, name), value);
      }
    }
  }

  void finish() {
    tensors_.finish();
    if (rates_.empty()) return;  // all steps were skipped, which is an error of its own
    json trace = {{"name", file_.stem().string()}, {"config", config_},
                  {"params", json::object()},      {"qkv_params", json::array()},
                  {"first_step", first_step()},    {"rates", rates_}};
    trace["config"]["lr"] = rates_.front()[0];
    trace["config"]["weight_decay"] = rates_.front()[1];
    for (const OptimizedParam& param : group_.params) {
      trace["params"][param.model.info.name] = param.model.info.shape;
      if (param.model.info.attributes.is_qkv) {
        trace["qkv_params"].push_back(param.model.info.name);
      }
    }
    std::ofstream stream(file_, std::ios::binary);
    stream << trace.dump(1) << "\n";
    stream.close();
    require_written(stream, file_);
  }

 private:
  // Updates before the first one; those of Muon are not counted, and it does not ask.
  int64_t first_step() const {
    return group_.params.front().step - static_cast<int64_t>(rates_.size());
  }

  SafetensorsWriter::Shapes shapes(int64_t steps) const {
    SafetensorsWriter::Shapes all;
    for (const OptimizedParam& param : group_.params) {
      const ParamInfo& info = param.model.info;
      const std::vector<StateSpec> states = states_of(group_.rule_config, info.shape);
      all.emplace_back("init." + info.name, info.shape);
      for (const auto& [state, value] : param.state) {
        all.emplace_back("start." + state + "." + info.name, value.sizes().vec());
      }
      for (int64_t step = 0; step < steps; ++step) {
        all.emplace_back(grad_key(step, info.name), info.shape);
        all.emplace_back(step_key(step, "param", info.name), info.shape);
        for (const StateSpec& state : states) {
          all.emplace_back(step_key(step, state.name, info.name), state.shape);
        }
      }
    }
    return all;
  }

  OptimizerGroup& group_;
  fs::path file_;
  json config_;
  SafetensorsWriter tensors_;
  std::vector<std::array<double, 2>> rates_;  // lr, weight decay
};

class Recorder final : public ReplayObserver {
 public:
  explicit Recorder(fs::path folder) : folder_(std::move(folder)) {}

  void begin(LayerWiseDistributedOptimizer& optimizer, int64_t steps) override {
    std::vector<size_t> counts;
    for (OptimizerGroup* const group : optimizer.param_groups()) {
      const uint32_t number = group->settings.optimizer_index;
      counts.resize(std::max<size_t>(counts.size(), number + 1));
      const std::string name = "optimizer" + std::to_string(number) + "_group" +
                               std::to_string(counts[number]++) + ".json";
      if (group->params.empty()) continue;
      names_.emplace_back(name);
      traces_.push_back(std::make_unique<GroupTrace>(*group, folder_ / name, steps));
    }
  }
  void before_update(LayerWiseDistributedOptimizer&, int64_t step) override {
    for (const auto& trace : traces_) trace->before_update(step);
  }
  void after_update(LayerWiseDistributedOptimizer&, int64_t step) override {
    for (const auto& trace : traces_) trace->after_update(step);
  }
  void end() override {
    for (const auto& trace : traces_) trace->finish();
  }
  const std::vector<fs::path>& names() const { return names_; }

 private:
  fs::path folder_;
  std::vector<fs::path> names_;
  std::vector<std::unique_ptr<GroupTrace>> traces_;
};

void check(const ReplayOptions& options, const fs::path& folder) {
  if (options.processes.rank.size > 1 || options.device != "cpu") {
    refuse_key({}, "traces are recorded by one process, on the CPU", ckpt::ErrorCode::Unsupported);
  }
  if (!options.output.empty() || !options.expect.empty()) {
    refuse_key({}, "a recording compares nothing and writes traces alone");
  }
  if (!fs::exists(fs::symlink_status(folder))) return;
  throw ckpt::Error(ckpt::ErrorCode::AlreadyExists, {.file = folder.string()}, "the output exists",
                    "give another name to -o");
}

}  // namespace

std::vector<fs::path> record_traces(const ReplayOptions& options, const fs::path& folder) {
  check(options, folder);
  try {
    fs::create_directories(fs::absolute(folder / "").parent_path().parent_path());
    ckpt::Staging staging = ckpt::Staging::create(folder);
    Recorder recorder(staging.folder());
    const ReplayReport report = replay_observed(options, &recorder);
    for (const ReplayedStep& step : report.steps) {
      if (!step.was_skipped) continue;
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {},
                        "a step was skipped for an overflow, and traces have none that are");
    }
    std::vector<fs::path> written = recorder.names();
    staging.commit();
    for (fs::path& file : written) file = folder / file;
    return written;
  } catch (const fs::filesystem_error& error) {
    throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = folder.string()},
                      error.code().message());
  }
}

}  // namespace optim
