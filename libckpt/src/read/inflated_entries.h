#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/error.h>
#include <ckpt/limits.h>

#include "codec/zstd_stream.h"

namespace ckpt {

// Compressed entries of a checkpoint, each as if it were a file of its own, numbered behind the
// real ones, so that a storage inside one is a region like any other. Few are open at a time: those
// used last, as far as kKeptBytesMax goes. Safe to use from many threads.
class InflatedEntries {
 public:
  static constexpr uint64_t kKeptBytesMax = uint64_t{128} << 20;

  // `file_count`: of the catalog; `open`: opens a real file.
  InflatedEntries(uint32_t file_count, std::function<const RandomAccess&(uint32_t)> open);

  // The number of the file that the entry inflates to, at most `count_bytes_max` long.
  uint32_t add(const StorageRegion& entry, uint64_t count_bytes_max);

  bool holds(uint32_t file) const { return file >= file_count_; }
  uint32_t real_file(uint32_t file) const;
  std::shared_ptr<const ZstdStream> stream(uint32_t file) const;

 private:
  struct Entry {
    uint32_t file;
    ByteRange bytes;
    uint64_t count_bytes_max;
  };
  using Open = std::pair<uint32_t, std::shared_ptr<const ZstdStream>>;

  Entry entry(uint32_t file) const;
  std::shared_ptr<const ZstdStream> find_open(uint32_t file) const;
  void keep(uint32_t file, std::shared_ptr<const ZstdStream> stream) const;

  uint32_t file_count_;
  std::function<const RandomAccess&(uint32_t)> open_file_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> numbers_;  // by file and offset
  mutable std::list<Open> open_;                               // the one used last is first
};

// Where an entry of a .distcp file is compressed, the most bytes that its archive may inflate to.
// `chunk`: what .metadata says that it holds of the tensor; an object where there is none.
uint64_t inflated_bytes_max(const TensorEntry* tensor, const Chunk* chunk, const Limits& limits);

// The tensor in an entry of a .distcp file must be the one that .metadata promises: throws Corrupt
// at `where`.
void check_entry(const TensorView& view, const TensorEntry& tensor, const Chunk& chunk,
                 const Where& where);

}  // namespace ckpt
