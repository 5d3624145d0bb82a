// What processes that update ranges of one model ask each other.
#include <ATen/ops/zeros.h>

#include "step/element_ranges/range_sharding.h"

namespace optim {
namespace {

class RangePeers final : public Peers {
 public:
  RangePeers(Optimizer& optimizer, RangeSharding& sharding)
      : Peers(optimizer), sharding_(sharding) {}

  bool are_there() const override { return sharding_.stats.size() > 1; }

  bool agree_on_overflow(bool found_inf) override {
    const OptimizerConfig& config = optimizer_.config();
    return scales_loss(config) ? any(found_inf) : found_inf;
  }

  bool any(bool mine) override { return largest(mine ? 1 : 0) != 0; }
  void barrier() override { largest(0); }
  int64_t grad_count() override { return sharding_.grad_count; }
  at::Device device() override { return at::kCPU; }  // the constructor refuses others

 private:
  int64_t largest(int64_t mine) {
    at::Tensor value = at::zeros({1}, at::kLong);
    *value.mutable_data_ptr<int64_t>() = mine;
    sharding_.stats.all_reduce_max(value);
    return *value.const_data_ptr<int64_t>();
  }

  RangeSharding& sharding_;
};

}  // namespace

std::unique_ptr<Peers> make_peers(Optimizer& optimizer, RangeSharding& sharding) {
  return std::make_unique<RangePeers>(optimizer, sharding);
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
