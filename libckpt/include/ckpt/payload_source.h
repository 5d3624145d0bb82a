#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

// A tensor that lies in no file: `fill` writes elements of it, from `first` on, row-major. It is
// safe to call from many threads.
struct ComputedTensor {
  uint64_t element_bytes = 1;
  std::function<void(uint64_t first, std::span<std::byte> out)> fill;
};
// `source`, and behind its files, from `first_file` on, one for each such tensor, whose readers ask
// for whole elements. `shown`: their path to print in errors. `source` must outlive it.
std::shared_ptr<const PayloadSource> with_computed(const PayloadSource& source, uint32_t first_file,
                                                   std::vector<ComputedTensor> tensors,
                                                   std::string shown);
// All of such a tensor, as the content of its file.
Chunk chunk_of_computed(const TensorEntry& tensor, uint32_t file);

}  // namespace ckpt
