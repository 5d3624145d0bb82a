#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/torch_dist/dist_metadata.h"

namespace ckpt {

// What a .metadata says of the catalog, in pieces, so that one thread may read them while another
// puts them together. The numbers and names that a piece points to must outlive the collecting.
struct DistPieces {
  struct ChunkBox {
    const Extents *offsets, *sizes;
  };
  struct Tensor {
    DType dtype;
    const Extents* shape;
    size_t first_box, boxes;  // of its chunks, in `boxes`
    bool requires_grad;
  };
  // Of state_dict_metadata; `key` is a small number of its own for each name.
  struct Entry {
    uint32_t key;
    const std::string* name;
    std::optional<Tensor> tensor;  // none: an object
  };
  // Of storage_data.
  struct Place {
    uint32_t key;
    uint32_t file;           // index into DistMetadata::files
    const Extents* offsets;  // of the chunk; null: of an object
    ByteRange bytes;
  };
  std::vector<ChunkBox> boxes;
  std::vector<Entry> entries;
  std::vector<Place> places;

  void clear() {
    boxes.clear();
    entries.clear();
    places.clear();
  }
};

// Puts a catalog together. A function returns false where something is not as real writers have
// it: read_dist_metadata() then decides what it is.
class DistCollector {
 public:
  // The entries, then the places. Throws Corrupt where a tensor's chunks do not tile it.
  bool collect(const DistPieces& pieces);

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

  bool add_entry(const DistPieces& pieces, const DistPieces::Entry& entry);
  void add_tensor(const DistPieces& pieces, const DistPieces::Entry& entry);
  bool place_object(const DistPieces::Place& place);
  bool place_chunk(const DistPieces::Place& place);
  Known known(uint32_t key) const { return key < known_.size() ? known_[key] : Known{}; }
  std::optional<uint32_t> chunk_at(uint32_t tensor, const Extents& offsets);
  void set_region(StorageRegion& region, const DistPieces::Place& place);

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
