#pragma once

#include <cstdint>
#include <vector>

#include <optim/lpt_layout.h>

#include "grid/flat_buffers.h"

// Who owns which elements of the state of a DistributedOptimizer (ZeRO-1): every rank that shares a
// flat buffer owns an equal part of each bucket. Pure.
namespace optim {

// What a rank owns of its own tensor of a parameter, flattened.
struct FlatShare {
  uint32_t param = 0;
  ElementRange range;
};

// Of a bucket's elements, in the buffer, those of one of the ranks that share it.
ElementRange own_part(const FlatBucket& bucket, uint32_t rank, uint32_t rank_count);

// Of one optimizer of the chain on one rank, in the model's order. `state`: that of `buffers`.
std::vector<FlatShare> flat_shares(const TrainingState& state, const FlatBuffers& buffers,
                                   uint32_t optimizer, const RankCoordinates& rank);

}  // namespace optim
