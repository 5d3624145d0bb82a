#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <ckpt/verify.h>

#include "state/value_scan.h"

namespace optim {

// Looks at the values of storages while ckpt::verify() reads them.
class StateWatch {
 public:
  // Which weights a tensor is summed as (weight_sum.h): float32 masters as what they round to.
  using SummedAs = std::optional<ckpt::DType>;

  struct Watched {
    ckpt::DType dtype = ckpt::DType::Float32;
    uint64_t count_bytes = 0;  // that the storage must have
    Wanted wanted = Wanted::Anything;
    SummedAs summed_as = std::nullopt;
    // What was seen.
    ValueScan values = {};
    uint64_t weight_sum = 0;
    uint64_t seen_bytes = 0;
    bool is_zero = true;  // all that was seen
  };

  // A chunk whose storage holds exactly its box, row-major; nullopt for others. A chunk that is
  // added again is watched once, for both reasons.
  std::optional<size_t> add(const ckpt::Chunk& chunk, ckpt::DType dtype, Wanted wanted,
                            SummedAs summed_as = std::nullopt);
  void see(const ckpt::StoragePiece& piece);  // thread-safe once all were added

  // What was added for a storage; nullopt: nothing.
  std::optional<size_t> number_of(const ckpt::StorageRegion& region) const;

  const Watched& operator[](size_t number) const { return watched_[number]; }
  // All of its bytes came by: the storage is as long as it must be, and was readable.
  bool is_seen(size_t number) const {
    return watched_[number].seen_bytes == watched_[number].count_bytes;
  }

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // file, start of the region
  std::map<Place, size_t> numbers_;
  std::vector<Watched> watched_;
  std::mutex mutex_;
};

}  // namespace optim
