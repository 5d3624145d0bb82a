#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ckpt/checkpoint.h>
#include <optim/training_state.h>

// What Megatron-Core 0.15 to 0.19 does to fully_reshardable state where gradients are in several
// buckets (its issue 5077): it takes the padding at the ends of buckets out of a buffer, and then
// cuts parameters where they were with it. What is stored of a parameter begins behind its own
// values, by the padding of all buckets before its own.
namespace optim {

struct BucketShift {
  std::string param;             // the first in the model that is displaced
  uint64_t param_count = 0;      // displaced ones
  uint64_t least = 0, most = 0;  // elements by which they are
  uint64_t element_count = 0;    // of displaced parameters
  uint64_t found_count = 0;      // of these, those that lie in what is stored of some parameter
  uint64_t matching_count = 0;   // of these, those whose masters round to the weights

  uint64_t lost_count() const { return element_count - found_count; }
  // Whether moving state back makes it right.
  bool explains() const {
    return found_count > 0 && (found_count - matching_count) <= found_count / 1000;
  }
};

// The first parameter that would be displaced in this run's buckets; empty where none would be.
std::string first_displaced(const TrainingState& state);
// Reads masters where they would lie, and compares them with the weights. nullopt where no
// parameter would be displaced, or where it is not known how ranks share one.
std::optional<BucketShift> find_bucket_shift(const TrainingState& state,
                                             const ckpt::Checkpoint& source);

}  // namespace optim
