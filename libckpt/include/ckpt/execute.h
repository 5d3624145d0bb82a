#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>

namespace ckpt {

struct Progress {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  // grows where what is inflated is more than was stated
  // What is done with these bytes, where it is not the work itself but follows it: "reading back",
  // "compressing", "hashing", "proving", "verifying", "comparing". Its bytes are counted from 0.
  std::string_view step = {};
};

struct WrittenPiece {
  Piece piece;
  uint32_t crc32 = 0;  // of its bytes
  // Of a part of a file, for each of the piece's records: what the piece has of it as its own. Over
  // all pieces of a record these give, by exclusive or, its CRC-32.
  std::vector<uint32_t> record_crcs;
};

struct ExecuteOptions {
  unsigned threads = 0;  // 0: one per core; execute() takes at least four, which wait for the disk
  uint64_t memory_bytes_max = uint64_t{256} << 20;  // all buffers together
  // Resident memory of the whole process, where it is not 0: buffers take what the rest leaves of
  // it, at most memory_bytes_max. InvalidArgument where it leaves too little.
  uint64_t process_bytes_max = 0;
  std::function<void(const Progress&)> on_progress;  // called from any thread, one call at a time
  // How much of a file is written at a time, where that is not free: a multiple of 64 KiB.
  uint64_t window_bytes = 0;
  // What is written: some of cut_into_pieces(), in their order; empty: all files. Nothing else is
  // touched. Pieces that close something are written after a file's others, not with them.
  std::vector<Piece> pieces;
  // By index into Plan::records: the CRC-32 that pieces which close something state. Else empty.
  std::span<const uint32_t> record_crcs;
  // Called when all bytes of a piece were handed to the system; they need not be on the device yet.
  // From any thread, also several calls at a time.
  std::function<void(const WrittenPiece&)> on_piece;
  // Called with what is read of the source's storages that state a CRC-32, as it is stored and
  // before it is known to be sound: each byte once, in whatever parts and order. From any thread,
  // also several calls at a time.
  std::function<void(const StorageRegion& located, uint64_t offset_bytes,
                     std::span<const std::byte> bytes)>
      on_read;
  std::stop_token stop;  // a requested stop ends in Error(IoFailure, "cancelled")
};

struct ExecuteStats {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t file_count = 0;
  // Numbers that became infinite in a type of a smaller range (ckpt/cast.h), by key.
  struct Overflow {
    std::string key;
    uint64_t count = 0;
  };
  std::vector<Overflow> overflows = {};
};

// Resident memory of this process at its peak if it executed `plan` now, about: what it holds
// already, what it notes down of each copy, and all buffers. 0 where the system does not say.
// Throws InvalidArgument as execute().
uint64_t expected_peak_bytes(const Target& target, const Plan& plan, const ExecuteOptions& options);

// Moves the bytes: obeys the plan, decides nothing. The same plan gives the same bytes for any
// number of threads. Checks the CRC-32 of every source storage that it reads against the archive's
// (0 means that the archive has none).
CKPT_EXPORT ExecuteStats execute(const Target& target, const Plan& plan,
                                 const PayloadSource& source, Staging& staging,
                                 const ExecuteOptions& options = {});

}  // namespace ckpt
