#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <optim/lpt_layout.h>
#include <optim/training_state.h>

#include "grid/placement.h"
#include "sharding/flat_layout.h"

// Who owns which elements of the state of a DistributedOptimizer (ZeRO-1): each model chunk of a
// rank has its parameters in flat buffers, of which every rank that shares them owns an equal part
// of each bucket. Pure.
namespace optim {

// What a rank owns of its own tensor of a parameter, flattened.
struct FlatShare {
  uint32_t param = 0;
  ElementRange range;
};

class FlatShares {
 public:
  // `is_flat`: whether a parameter, by its index, is in such a buffer. What is given must outlive
  // it. Buckets are those that args give.
  FlatShares(const TrainingState& state, const Placement& placement,
             std::function<bool(uint32_t)> is_flat);

  // Of one rank, in the model's order.
  std::vector<FlatShare> of(const RankCoordinates& rank) const;

 private:
  // Parameters of a model chunk that lie in one buffer: of one type, experts of several expert
  // parallel ranks apart.
  struct BufferKey {
    uint32_t chunk = 0;
    bool is_expert = false;
    ckpt::DType dtype = ckpt::DType::Float32;
    auto operator<=>(const BufferKey&) const = default;
  };
  struct Buffer {
    std::vector<uint32_t> params;  // in the order of their registration
    std::vector<FlatParam> sizes;
    FlatLayout layout;
  };
  using Buffers = std::map<BufferKey, Buffer>;

  Buffers buffers_on(uint32_t stage, uint32_t expert_rank) const;
  uint32_t rank_count(const BufferKey& key) const;  // that share it

  const TrainingState& state_;
  const Placement& placement_;
  std::function<bool(uint32_t)> is_flat_;
  std::map<std::pair<uint32_t, uint32_t>, Buffers> stages_;  // [stage, expert parallel rank]
};

}  // namespace optim
