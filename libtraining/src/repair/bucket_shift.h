#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <training/filed_state.h>
#include <training/opened_training.h>

#include "repair/repaired_payloads.h"
#include "repair/shifted_state.h"

namespace optim {

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
