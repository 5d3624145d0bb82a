#pragma once

#include <cstdint>
#include <map>
#include <tuple>
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

// Lays each buffer out once, whatever the number of ranks that share it.
class FlatShares {
 public:
  // `state`: that of `buffers`. Both must outlive it.
  FlatShares(const TrainingState& state, const FlatBuffers& buffers)
      : state_(state), buffers_(buffers) {}

  // Of one optimizer of the chain on one rank, in the model's order.
  std::vector<FlatShare> of(uint32_t optimizer, const RankCoordinates& rank);

 private:
  struct Buffer {
    FlatBuffer laid_out;
    std::vector<uint32_t> order;  // places by where they begin
  };
  // Of the ranks of a stage that hold the same experts, which all hold as much.
  using Holders = std::tuple<uint32_t, uint32_t, uint32_t>;  // optimizer, stage, expert rank
  const std::vector<Buffer>& held_by(const Holders& holders, const RankCoordinates& rank);
  void add(const Buffer& buffer, ElementRange own, std::vector<FlatShare>& shares) const;

  const TrainingState& state_;
  const FlatBuffers& buffers_;
  std::map<Holders, std::vector<Buffer>> known_;
};

}  // namespace optim
