#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>

#include <ckpt/checkpoint.h>

namespace ckpt {

// Checks each source storage against its archive's CRC-32 once, however many records and threads
// read parts of it. Safe to use from many threads; who comes second waits for the first.
class SourceChecker {
 public:
  explicit SourceChecker(const PayloadSource& source) : source_(source) {}

  // `buffer`: memory to stream through.
  void check_once(const StorageRegion& located, std::span<std::byte> buffer);

 private:
  struct Storage {
    std::mutex mutex;  // held while the storage is read
    bool is_sound = false;
  };
  using Place = std::tuple<uint32_t, uint64_t, uint64_t>;  // file, offset, bytes

  std::shared_ptr<Storage> storage_at(const StorageRegion& located);

  const PayloadSource& source_;
  std::mutex mutex_;
  std::map<Place, std::shared_ptr<Storage>> storages_;
};

}  // namespace ckpt
