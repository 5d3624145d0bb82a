#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <ckpt/catalog.h>

namespace ckpt {

// Which chunk a .distcp entry holds, by its place: what .metadata says of it. Built when the first
// is asked for, since a listing asks for none. The catalog must outlive it. Safe to ask from many
// threads.
class ExpectedEntries {
 public:
  struct Entry {
    const TensorEntry* tensor;
    const Chunk* chunk;
  };
  explicit ExpectedEntries(const Catalog& catalog) : catalog_(catalog) {}

  const Entry* find(const StorageRegion& region) const;  // nullptr: no chunk starts there

 private:
  void build() const;

  const Catalog& catalog_;
  mutable std::once_flag built_;
  mutable std::vector<Entry> entries_;  // sorted by file and offset
};

}  // namespace ckpt
