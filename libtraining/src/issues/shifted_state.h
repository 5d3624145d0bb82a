#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/payload_source.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

#include "issues/bucket_windows.h"

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
  std::vector<LostRun> lost;
  uint64_t lost_count = 0;  // elements
};

inline constexpr std::string_view kBucketShiftWriters =
    "Megatron-Core 0.15 to 0.19 saves such state when gradients are in several buckets (its issue "
    "5077)";

// Whether fully_reshardable state is displaced as bucket_windows.h says, by its values: masters
// round to the weights of their parameters.
struct FoundShift {
  ShiftedState shifted;                                 // the state as it would be
  std::shared_ptr<const ckpt::PayloadSource> payloads;  // and where its bytes come from
  uint64_t element_count = 0;                           // of displaced parameters
  uint64_t stored_matching = 0;  // of these, those whose masters round to the weights as stored
  uint64_t matching_count = 0;   // of those that are in a file, those whose masters do when moved

  uint64_t found_count() const { return element_count - shifted.lost_count; }
  bool is_sound() const { return stored_matching == element_count; }
  // Whether moving state back makes it right: of what can be moved 99.9 % do then.
  bool explains() const {
    const uint64_t found = found_count();
    return !is_sound() && found > 0 && found - matching_count <= found / 1000;
  }
};

// The first parameter that would be displaced in this run's buckets; empty where none would be.
std::string first_displaced(const FiledState& state);
// Reads masters of displaced parameters as they are stored and where they would lie, and compares
// them with the weights. nullopt where no parameter would be displaced in this run's buckets, where
// it is not known how ranks share one, and of other layouts. Throws Unsupported for more lost
// elements than can be kept.
std::optional<FoundShift> find_bucket_shift(const FiledState& state, const OpenedTraining& source);

}  // namespace optim
