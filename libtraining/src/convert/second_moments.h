#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include <training/opened_training.h>
#include <training/training_state.h>

#include "state/watched_ranges.h"

namespace optim {

// Looks for negative second moments among the bytes that are copied anyway: a mean of squares that
// is below zero was damaged, and the next step would make its parameter NaN. Safe to use from many
// threads. An element that is read in two parts is not looked at.
class SecondMoments {
 public:
  // Must outlive it.
  explicit SecondMoments(const TrainingState& view);

  // As ExecuteOptions::on_read.
  void note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
            std::span<const std::byte> bytes);

  // Throws Corrupt for what was seen, the first by its place in the files.
  void refuse_negative(const OpenedTraining& source) const;

 private:
  // A chunk that is watched.
  struct Watched {
    const ckpt::TensorEntry* tensor = nullptr;
    const ckpt::Chunk* chunk = nullptr;
  };
  struct Storage {
    uint64_t end_bytes = 0;
    WatchedRanges<Watched> watched;
  };
  using Place = std::pair<uint32_t, uint64_t>;  // file, offset

  void note_part(const Watched& watched, uint64_t begin_bytes, std::span<const std::byte> bytes);

  std::map<Place, Storage> storages_;
  std::mutex mutex_;
  std::map<std::pair<Place, uint64_t>, std::pair<Watched, uint64_t>> negative_;  // how many
};

}  // namespace optim
