#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/dtype.h>
#include <ckpt/payload_source.h>

namespace optim {

bool can_cast(ckpt::DType from, ckpt::DType to);
// Whether it holds every value of each type that can be cast to it.
bool is_widening(ckpt::DType to);

// The payloads of another source, and regions of them in other types, each a file of its own by
// number. Safe to read from many threads: what locate() found of a region is kept under a lock.
class CastPayloads final : public ckpt::PayloadSource {
 public:
  // `first_file`: a number that no file of `source` has, nor any above it.
  CastPayloads(const ckpt::PayloadSource& source, uint32_t first_file)
      : source_(source), first_file_(first_file) {}

  // The tensor in another type. Reading throws Unsupported where a number is too large for it, or
  // becomes 0 and must not. Not while others read.
  ckpt::TensorEntry cast(const ckpt::TensorEntry& tensor, ckpt::DType to, bool may_vanish);

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override;
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override;
  void read_once(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override;
  std::string file_name(uint32_t file) const override;

 private:
  struct CastRegion {
    ckpt::StorageRegion stored;
    ckpt::DType from, to;
    std::string key;
    bool may_vanish;
  };
  const CastRegion& cast_region(uint32_t file) const { return regions_[file - first_file_]; }
  ckpt::LocatedRegion located_storage(uint32_t file) const;

  const ckpt::PayloadSource& source_;
  uint32_t first_file_;
  std::vector<CastRegion> regions_;
  mutable std::mutex mutex_;
  mutable std::vector<std::optional<ckpt::LocatedRegion>> located_;  // [file - first_file_]
};

}  // namespace optim
