#pragma once

#include <deque>
#include <map>
#include <string>

#include <optim/training_state.h>

#include "grid/flat_buffers.h"
#include "grid/layer_wise_view.h"
#include "layouts/parts/flat_states.h"
#include "layouts/torch/torch_source.h"

// The state of DistributedOptimizers in distrib_optim.pt of rank folders, which the first of the
// ranks that share a buffer writes: {buckets_coalesced: True, GBUF: {(dtype, gradient's dtype):
// {param: ..., exp_avg: ..., exp_avg_sq: ..., numel_unpadded: N}}}, of experts a list of two of
// these. A buffer's buckets lie one behind the other, without the padding at their ends. Their
// parameter groups are in each model_optim_rng.pt.
namespace optim {

class FlatFiles {
 public:
  // `view`: its model, its splits and the length of its chain are known.
  struct Into {
    TrainingState& view;
    CommonBuilder& common;
  };
  FlatFiles(const TorchSource& source, const FlatBuffers& buffers, Into into)
      : source_(source),
        buffers_(buffers),
        into_(into),
        states_(source.checkpoint, buffers, into.view) {}

  // `groups`: those of `buffers`. Throws Corrupt where a file does not hold what its ranks write.
  void read(const std::vector<ParamGroup>& groups);

 private:
  // Of one optimizer in one file.
  struct Stored {
    const WorldRank& rank;
    uint32_t optimizer;
    ckpt::Value value;
    Place place;
  };
  bool writes(const WorldRank& rank, uint32_t optimizer) const;
  void require_writers() const;
  void read_optimizer(const Stored& stored);
  void read_buffer(const Stored& stored, size_t number, const FlatBuffer& buffer);
  const FlatTensors& tensors_at(const ckpt::Value& value, const Place& place,
                                const FlatLayout& layout);
  void read_groups(const std::vector<ParamGroup>& groups);

  const TorchSource& source_;
  const FlatBuffers& buffers_;
  Into into_;
  FlatStates states_;
  std::deque<FlatTensors> tensors_;
};

}  // namespace optim
