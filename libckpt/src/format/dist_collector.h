#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "format/dist_metadata.h"
#include "format/interned.h"

namespace ckpt {

// Puts a catalog together from the parts of a .metadata as they come: a tensor when its object is
// complete, its name with the entry of state_dict_metadata, its chunks' places with storage_data.
// A function returns false where something is not as real writers have it: read_dist_metadata()
// then decides what it is.
class DistCollector {
 public:
  struct ChunkBox {
    uint32_t offsets, sizes;  // ids of InternedExtents
  };
  struct Place {
    uint32_t path;  // id of InternedTexts
    ByteRange bytes;
  };

  DistCollector(const InternedTexts& texts, const InternedExtents& extents)
      : texts_(texts), extents_(extents) {}

  // Returns its number.
  uint32_t add_tensor(DType dtype, uint32_t shape, std::span<const ChunkBox> chunks);
  // Throws Corrupt where the tensor's chunks do not tile it.
  bool name_tensor(uint32_t tensor, uint32_t key);
  bool name_object(uint32_t key);
  bool place_object(uint32_t key, const Place& place);
  bool place_chunk(uint32_t key, uint32_t offsets, const Place& place);

  const std::vector<uint32_t>& keys() const { return keys_; }  // of entries, in their order
  bool is_complete() const { return unplaced_ == 0 && tensors_.size() == named_tensors_; }
  // The catalog's part of the result, once it is complete.
  DistMetadata take();

 private:
  enum class What : uint8_t { Nothing, Tensor, Object };
  struct Entry {
    What what = What::Nothing;
    uint32_t index = 0;
  };

  bool name_entry(uint32_t key, Entry entry);
  Entry entry_of(uint32_t key) const { return key < entries_.size() ? entries_[key] : Entry{}; }
  std::optional<uint32_t> chunk_at(uint32_t tensor, uint32_t offsets);
  bool set_region(StorageRegion& region, const Place& place);
  bool is_at(const Chunk& chunk, uint32_t offsets) const;

  const InternedTexts& texts_;
  const InternedExtents& extents_;
  std::vector<TensorEntry> tensors_;
  std::vector<ObjectEntry> objects_;
  std::vector<std::string> files_;
  std::vector<uint32_t> keys_;
  std::vector<Entry> entries_;          // [key]
  std::vector<uint32_t> file_of_path_;  // [path] + 1; 0: not met
  std::vector<uint32_t> next_chunk_;    // [tensor] where the next place is looked for first
  std::unordered_map<uint32_t, std::vector<uint32_t>> by_offsets_;  // [tensor] chunks, sorted
  uint64_t unplaced_ = 0;
  size_t named_tensors_ = 0;
};

}  // namespace ckpt
