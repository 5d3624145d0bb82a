// usage: example [RANKS]. Groups the parameters of a small model as Megatron does with Muon, and
// shows which of the data-parallel ranks (default: 2) owns which of them: the rank that keeps a
// parameter's master and moments and updates it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <optim/ownership.h>
#include <optim/param_group.h>

namespace {

optim::ParamInfo param(const std::string& name, std::vector<int64_t> shape) {
  return {
      .name = name, .shape = shape, .attributes = optim::megatron_attributes(name, shape.size())};
}

// Matrices go to Muon, the rest to Adam; biases are not decayed.
std::vector<optim::ParamGroup> groups_of_the_model() {
  const std::vector<optim::ParamInfo> params = {
      param("embedding.word_embeddings.weight", {64, 16}),
      param("decoder.layers.0.mlp.linear_fc1.weight", {64, 16}),
      param("decoder.layers.0.mlp.linear_fc1.bias", {64}),
      param("decoder.layers.0.mlp.linear_fc2.weight", {16, 64}),
  };
  optim::OptimizerConfig config;
  config.optimizer = "muon";
  config.lr = 0.01;
  config.use_layer_wise_distributed_optimizer = true;
  return optim::get_param_groups(params, config);
}

// Whether each parameter has one owner, as it should.
bool print_owners(std::span<const optim::ParamGroup> groups, uint32_t ranks) {
  std::vector<std::string> names;  // by id: the place in the concatenation of all groups
  for (const optim::ParamGroup& group : groups) {
    for (const optim::GroupedParam& grouped : group.params) names.push_back(grouped.info.name);
  }
  const optim::Ownership ownership =
      optim::shard_params(groups, {.data_parallel = ranks}, optim::OwnershipPolicy::PingPong);
  size_t dealt = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (const optim::LocalParam& kept : optim::local_params(groups, ownership, {rank, 0})) {
      std::printf("rank %u  optimizer %u, group %u  %s\n", rank, kept.optimizer, kept.group,
                  names.at(kept.id).c_str());
      ++dealt;
    }
  }
  return dealt == names.size();
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  try {
    return print_owners(groups_of_the_model(), static_cast<uint32_t>(ranks)) ? 0 : 1;
  } catch (const ckpt::Error& error) {  // 0 ranks are refused, for example
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
