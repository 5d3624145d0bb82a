// What processes that update ranges of one model ask each other.
#include <ATen/ops/zeros.h>

#include "step/element_ranges/range_sharding.h"
#include "step/layer_wise/layer_wise_sharding.h"

namespace optim {
namespace {

class RangePeers final : public Processes {
 public:
  using Processes::Processes;
  at::Device device() override { return at::kCPU; }  // the constructor refuses others
};

}  // namespace

std::unique_ptr<Peers> make_peers(Optimizer& optimizer, RangeSharding& sharding) {
  return std::make_unique<RangePeers>(optimizer, sharding.stats, sharding.grad_count);
}

std::optional<std::string> partial_grad(RangeSharding& sharding,
                                        std::span<OptimizedParam* const> own) {
  const auto count = static_cast<int64_t>(sharding.params.size());
  std::optional<std::string> found;
  for (SharingGroup* const group : sharding.groups()) {
    if (group->ids.empty()) continue;
    at::Tensor largest = at::zeros({2, count}, at::kLong);
    auto* const present = largest.mutable_data_ptr<int64_t>();
    auto* const absent = present + count;
    for (const OptimizedParam* const param : own) {
      if (&sharding.group_of(param->id) != group) continue;
      (param->grad.defined() ? present : absent)[param->id] = 1;
    }
    group->collectives.all_reduce_max(largest);
    for (int64_t id = 0; id < count && !found; ++id) {
      if (present[id] != 0 && absent[id] != 0) {
        found = sharding.params[static_cast<size_t>(id)].info.name;
      }
    }
  }
  return found;
}

}  // namespace optim
