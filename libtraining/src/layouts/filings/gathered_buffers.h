#pragma once

#include <deque>
#include <functional>
#include <vector>

#include <ckpt/value.h>
#include <training/training_state.h>

#include "args/value_place.h"
#include "grid/flat_buffers.h"
#include "layouts/parts/flat_states.h"

// The state of a DistributedOptimizer that the first of the ranks that share its buffers gathers,
// in distrib_optim.pt and up to 0.14 in an object of torch_dist:
//
//   {buckets_coalesced: True, GBUF: {(dtype, gradient's dtype):
//     {param: ..., exp_avg: ..., exp_avg_sq: ..., numel_unpadded: N}}}
//
// A buffer's buckets lie one behind the other, without the padding at their ends.
namespace optim {

class GatheredBuffers {
 public:
  // Both must outlive it.
  GatheredBuffers(const TrainingState& view, FlatStates& states) : view_(view), states_(states) {}

  // The tensor at a place of the value. It must outlive the joining of the states. Throws Corrupt
  // where there is none.
  using TensorAt = std::function<const ckpt::TensorEntry&(const Place& place)>;
  // Of one optimizer, as a rank that gathered it has it.
  struct Stored {
    const RankCoordinates& rank;
    ckpt::Value value;
    Place place;
    TensorAt tensor_at;
  };
  // Adds the parts of parameters to the states. `buffers`: those of the rank, whose sizes must be
  // those that are stated. Throws Corrupt where they are not.
  void read(const Stored& stored, const std::vector<FlatBuffer>& buffers);

 private:
  void read_buffer(const Stored& stored, size_t number, const FlatBuffer& buffer);
  const FlatTensors& tensors_at(const Stored& stored, const Place& place, const ckpt::Value& value,
                                const FlatLayout& layout);

  const TrainingState& view_;
  FlatStates& states_;
  std::deque<FlatTensors> tensors_;
};

}  // namespace optim
