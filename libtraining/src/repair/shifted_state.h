#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <training/filed_state.h>
#include <training/opened_training.h>

#include "repair/bucket_windows.h"

namespace optim {

// Elements of a rank's tensor that are in no file.
struct LostRun {
  uint32_t param = 0, tensor_rank = 0;
  ElementRange elements;      // of the rank's tensor, flattened
  uint64_t filler_begin = 0;  // the first of them in the filler's masters
};

// A training state, of which masters and states of displaced parameters are where they belong:
// other chunks of the same files, and of lost elements of a file that is none, the filler. It
// holds, in elements of float32, masters in the order of `lost`, and behind them zeros for states.
struct ShiftedState {
  FiledState state;
  std::vector<uint32_t> displaced;  // parameters
  uint64_t least = 0, most = 0;     // elements by which they are
  uint64_t element_count = 0;       // of these parameters
  std::vector<LostRun> lost;
  uint64_t lost_count = 0, longest_lost = 0;  // elements
};

// nullopt where no parameter would be displaced in this run's buckets, or where it is not known how
// ranks share one. Reads nothing.
std::optional<ShiftedState> shift_back(const FiledState& state, const OpenedTraining& source);

// The file of the filler, by the number that no file of the checkpoint has.
inline uint32_t filler_file(const OpenedTraining& source) {
  return static_cast<uint32_t>(source.catalog().files.size());
}

}  // namespace optim
