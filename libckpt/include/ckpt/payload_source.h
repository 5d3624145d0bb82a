#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <ckpt/catalog.h>
#include <ckpt/export.h>

namespace ckpt {

// Where payload bytes come from. Implementations are safe to read from many threads.
class CKPT_EXPORT PayloadSource {
 public:
  virtual ~PayloadSource();
  // The region of the storage itself: unwraps a torch.save entry, returns other regions as they
  // are.
  virtual LocatedRegion locate(const StorageRegion& region) const = 0;
  // Reads out.size() bytes that start `offset_bytes` into a located region.
  virtual void read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                          std::span<std::byte> out) const = 0;
  // As read_bytes(), for who passes over the bytes once: a source may let the system forget what it
  // would not have kept otherwise. Default: read_bytes().
  virtual void read_once(const StorageRegion& located, uint64_t offset_bytes,
                         std::span<std::byte> out) const;
  // The path to print in errors about a file of the catalog.
  virtual std::string file_name(uint32_t file) const = 0;
};

}  // namespace ckpt
