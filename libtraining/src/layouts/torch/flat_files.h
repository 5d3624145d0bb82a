#pragma once

#include <vector>

#include <training/training_state.h>

#include "grid/flat_buffers.h"
#include "grid/layer_wise_view.h"
#include "layouts/parts/flat_states.h"
#include "layouts/parts/gathered_buffers.h"
#include "layouts/torch/torch_source.h"

// The state of DistributedOptimizers in distrib_optim.pt of rank folders, which the first of the
// ranks that share a buffer writes (gathered_buffers.h), of experts a list of two of these. Their
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
        states_(source.checkpoint, buffers, into.view),
        gathered_(into.view, states_) {}

  // `groups`: those of `buffers`. Throws Corrupt where a file does not hold what its ranks write.
  void read(const std::vector<ParamGroup>& groups);

 private:
  bool writes(const WorldRank& rank, uint32_t optimizer) const;
  void require_writers() const;
  void read_groups(const std::vector<ParamGroup>& groups);

  const TorchSource& source_;
  const FlatBuffers& buffers_;
  Into into_;
  FlatStates states_;
  GatheredBuffers gathered_;
};

}  // namespace optim
