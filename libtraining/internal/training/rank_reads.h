#pragma once

#include <cstdint>
#include <vector>

#include <training/filed_state.h>
#include <training/opened_training.h>

namespace optim {

// What one rank of a run takes from a checkpoint when Megatron-LM loads it.
struct RankReads {
  uint32_t rank = 0;
  // Of the files: of `torch` whole ones; of torch_dist .metadata, the common state, and each chunk
  // that overlaps what the rank asks for, as often as it asks. PyTorch's own looking around in
  // archives comes on top: some KiB for each chunk.
  uint64_t read_bytes = 0;
  // What is allocated for it while loading: tensors of the rank's shapes.
  uint64_t tensor_count = 0, tensor_bytes = 0;
};

struct LoadRequest {
  RunGrid grid;
  bool wants_optimizer = true;
};

// In the order of world ranks. Without --ckpt-fully-parallel-load. Pure: from what `state` names.
// Throws Unsupported for filings of which it is not known (up to 0.14: ranges, gathered), and as
// target_grid() for grids that the model cannot be divided over.
std::vector<RankReads> reads_of_ranks(const OpenedTraining& checkpoint, const FiledState& state,
                                      const LoadRequest& request);

}  // namespace optim
