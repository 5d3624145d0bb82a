#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/torch_dist/dist_metadata.h"

namespace ckpt {

// Puts a catalog together. A function returns false where something is not as real writers have
// it: read_dist_metadata() then decides what it is.
class DistCollector {
 public:
  // Of storage_data.
  struct Place {
    uint32_t key;
    uint32_t file;           // index into DistMetadata::files
    const Extents* offsets;  // of the chunk; null: of an object
    ByteRange bytes;
  };
  // Of state_dict_metadata, all before the places; `key` is a small number of its own for each
  // name. Throws Corrupt where the tensor's chunks do not tile it.
  bool add_tensor(uint32_t key, TensorEntry tensor);
  bool add_object(uint32_t key, const std::string& name);
  bool add_place(const Place& place);

  bool is_complete() const { return unplaced_ == 0; }
  // What the catalog needs; nothing is left behind.
  std::vector<TensorEntry> take_tensors() { return std::move(tensors_); }
  std::vector<ObjectEntry> take_objects() { return std::move(objects_); }
  // See DistMetadata.
  std::vector<uint64_t> region_ends() const {
    return do_regions_follow_ ? ends_ : std::vector<uint64_t>();
  }

 private:
  enum class What : uint8_t { Nothing, Tensor, Object };
  struct Known {
    What what = What::Nothing;
    uint32_t index = 0;
  };

  bool add_known(uint32_t key, Known entry);
  bool place_object(const Place& place);
  bool place_chunk(const Place& place);
  Known known(uint32_t key) const { return key < known_.size() ? known_[key] : Known{}; }
  std::optional<uint32_t> chunk_at(uint32_t tensor, const Extents& offsets);
  void set_region(StorageRegion& region, const Place& place);

  std::vector<TensorEntry> tensors_;
  std::vector<ObjectEntry> objects_;
  std::vector<Known> known_;          // [key]
  std::vector<uint32_t> next_chunk_;  // [tensor] where the next place is looked for first
  std::unordered_map<uint32_t, std::vector<uint32_t>> by_offsets_;  // [tensor] chunks, sorted
  std::vector<uint64_t> ends_;     // [file] where the last of its regions ends
  bool do_regions_follow_ = true;  // each of a file starts where the one before it ends, or later
  uint64_t unplaced_ = 0;
};

}  // namespace ckpt
