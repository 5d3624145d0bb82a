#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <ckpt/verify.h>

#include "state/value_scan.h"
#include "state/watched_ranges.h"

namespace optim {

// Looks at the values of storages while ckpt::verify() reads them.
class StateWatch {
 public:
  // Which weights a tensor is summed as (weight_sum.h): float32 masters as what they round to.
  using SummedAs = std::optional<ckpt::DType>;

  struct Watched {
    ckpt::DType dtype = ckpt::DType::Float32;
    uint64_t begin_bytes = 0, count_bytes = 0;  // in the storage
    Wanted wanted = Wanted::Anything;
    SummedAs summed_as = std::nullopt;
    // What was seen.
    ValueScan values = {};
    uint64_t weight_sum = 0;
    uint64_t seen_bytes = 0;
    bool is_zero = true;  // all that was seen
  };

  // A chunk that is a run of bytes of its storage, row-major; nullopt for others, and for one that
  // is to be summed and starts within a pair of words. A chunk that is added again is watched once,
  // for both reasons.
  std::optional<size_t> add(const ckpt::Chunk& chunk, ckpt::DType dtype, Wanted wanted,
                            SummedAs summed_as = std::nullopt);
  void put_in_order() { ranges_.put_in_order(); }  // after the last was added
  void see(const ckpt::StoragePiece& piece);       // thread-safe from then on

  // Whether something was added for a storage, and all of it was seen and is 0.
  bool is_zero(const ckpt::StorageRegion& region) const;

  const Watched& operator[](size_t number) const { return watched_[number]; }
  // All of its bytes came by: the storage is as long as it must be, and was readable.
  bool is_seen(size_t number) const {
    return watched_[number].seen_bytes == watched_[number].count_bytes;
  }

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // file, start of the region
  void see(Watched& watched, uint64_t begin_bytes, std::span<const std::byte> bytes);

  // The start of a range, its length, its type: what is watched once.
  using Range = std::tuple<uint64_t, uint64_t, ckpt::DType>;

  WatchedStorages ranges_;
  std::map<std::pair<Place, Range>, size_t> known_;
  std::vector<Watched> watched_;
  std::mutex mutex_;
};

}  // namespace optim
