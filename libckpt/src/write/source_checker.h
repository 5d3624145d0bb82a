#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>
#include <ckpt/target.h>

#include "read/payload_reader.h"

namespace ckpt {

// Checks the storages of the source against their archives' CRC-32 with the bytes that are read
// anyway, in whatever parts and order that happens. What nobody wanted of a storage is read at the
// end. Safe to use from many threads.
class SourceChecker {
 public:
  // `on_read`: ExecuteOptions::on_read; may be empty; must outlive it.
  SourceChecker(const PayloadSource& source, const AfterRead& on_read)
      : source_(source), on_read_(on_read) {}

  // Takes note of bytes of a storage. Returns their CRC-32 if it had to be computed. Throws Corrupt
  // when they complete a storage that is not sound. `key`: the tensor's; must outlive the checker.
  std::optional<uint32_t> note(const StorageRegion& located, uint64_t offset_bytes,
                               std::span<const std::byte> bytes, std::string_view key);

  // The storages that were read in part, in the order of their places; then each is read to its
  // end, through `buffer`, and checked.
  size_t gather_incomplete();
  void complete(size_t index, std::span<std::byte> buffer);

 private:
  struct Place {
    uint32_t file;
    ByteRange bytes;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    size_t operator()(const Place& place) const;
  };
  using Ranges = std::map<uint64_t, uint64_t>;  // disjoint: from offset to end
  struct Storage {
    uint32_t stated_crc = 0;
    uint32_t crc = 0;               // of what was summed, each part moved to its place
    uint64_t summed_bytes = 0;      // each byte counts once
    std::unique_ptr<Ranges> known;  // gone once the storage is complete
    std::string_view key;
  };
  using Storages = std::unordered_map<Place, Storage, PlaceHash>;

  static std::vector<ByteRange> claim(Ranges& known, ByteRange part);
  std::vector<ByteRange> claim(Storages::value_type*& storage, const StorageRegion& located,
                               ByteRange part, std::string_view key);
  bool add(Storages::value_type& storage, uint32_t crc, uint64_t count_bytes);

  const PayloadSource& source_;
  const AfterRead& on_read_;
  std::mutex mutex_;
  Storages storages_;
  std::vector<Storages::value_type*> incomplete_;
};

// Checks every storage that some pieces take payload from against its archive's CRC-32, and throws
// Corrupt where one is damaged. For pieces that an interrupted run has finished: it may have ended
// before it had seen the whole of a storage.
void check_sources(const Target& target, const Plan& plan, std::span<const Piece> pieces,
                   const Checkpoint& source, const ExecuteOptions& options);

}  // namespace ckpt
