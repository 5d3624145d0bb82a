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

// The files of a checkpoint, and the filler of a shifted state: lost masters are the weights, lost
// states 0.
class RepairedPayloads final : public ckpt::PayloadSource {
 public:
  // Reads the weights of lost elements. `source` must outlive it. Throws Unsupported where they are
  // too many to be kept.
  RepairedPayloads(const OpenedTraining& source, const ShiftedState& shifted);

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override;
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override;
  void read_once(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override;
  std::string file_name(uint32_t file) const override;

 private:
  const OpenedTraining& source_;
  uint32_t filler_;
  std::vector<float> masters_;
};

inline constexpr std::string_view kBucketShiftWriters =
    "Megatron-Core 0.15 to 0.19 saves such state when gradients are in several buckets (its issue "
    "5077)";

// Whether fully_reshardable state is displaced as bucket_windows.h says, by its values: masters
// round to the weights of their parameters.
struct BucketShift {
  std::string param;             // the first in the model that is displaced
  uint64_t param_count = 0;      // displaced ones
  uint64_t least = 0, most = 0;  // elements by which they are
  uint64_t element_count = 0;    // of displaced parameters
  uint64_t stored_matching = 0;  // of these, those whose masters round to the weights as stored
  uint64_t lost_count = 0;       // of these, those that are in what is stored of no parameter
  uint64_t matching_count = 0;   // of the others, those whose masters do when they are moved

  uint64_t found_count() const { return element_count - lost_count; }
  bool is_sound() const { return stored_matching == element_count; }
  // Whether moving state back makes it right: of what can be moved 99.9 % do then.
  bool explains() const {
    const uint64_t found = found_count();
    return !is_sound() && found > 0 && found - matching_count <= found / 1000;
  }
};

// With the state as it would be, and where its bytes come from.
struct FoundShift {
  BucketShift shift;
  ShiftedState shifted;
  std::shared_ptr<const RepairedPayloads> payloads;
};

// The first parameter that would be displaced in this run's buckets; empty where none would be.
std::string first_displaced(const FiledState& state);
// Reads masters of displaced parameters as they are stored and where they would lie, and compares
// them with the weights. nullopt as shift_back(), and of other layouts.
std::optional<FoundShift> find_bucket_shift(const FiledState& state, const OpenedTraining& source);

}  // namespace optim
