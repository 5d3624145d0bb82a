// Groups the parameters of a small model as Megatron does with Muon, and deals them to two ranks.
#include <cstdio>
#include <string>
#include <vector>

#include <optim/ownership.h>
#include <optim/param_group.h>

namespace {

optim::ParamInfo param(const std::string& name, std::vector<int64_t> shape) {
  return {.name = name,
          .shape = shape,
          .attributes = optim::megatron_attributes(name, shape.size())};
}

}  // namespace

int main() {
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
  const std::vector<optim::ParamGroup> groups = optim::get_param_groups(params, config);
  const optim::Ownership ownership =
      optim::shard_params(groups, {.data_parallel = 2}, optim::OwnershipPolicy::PingPong);

  size_t dealt = 0;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const std::vector<optim::LocalParam> kept = optim::local_params(groups, ownership, {rank, 0});
    std::printf("rank %u keeps %zu parameters\n", rank, kept.size());
    dealt += kept.size();
  }
  return dealt == params.size() ? 0 : 1;
}
