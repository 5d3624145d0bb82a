#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/task_behind.h"
#include "format/torch_dist/dist_metadata.h"

namespace ckpt {

// Of state_dict_metadata. The names and numbers that it points to must outlive the collecting.
struct DistEntries {
  struct Entry {
    uint32_t key;  // a small number of its own for each name
    const std::string* name;
    const Extents* shape;  // null: of an object, and then the rest is not used
    DType dtype;
    bool requires_grad;
    size_t box_count;  // of the tensor's chunks: those behind the boxes of the entry before
  };
  struct Box {
    const Extents *offsets, *sizes;
  };
  std::vector<Entry> entries;
  std::vector<Box> boxes;

  void clear() {
    entries.clear();
    boxes.clear();
  }
};

// Puts a catalog together. A function returns false where something is not as real writers have
// it: read_dist_metadata() then decides what it is. Its functions are for one thread; where there
// is much, another puts it together while the caller reads on, so that a function may answer for
// what was added before.
class DistCollector {
 public:
  // Of storage_data.
  struct Place {
    uint32_t key;
    uint32_t file;           // index into DistMetadata::files
    const Extents* offsets;  // of the chunk; null: of an object
    ByteRange bytes;
  };

  // To be added to, then collected by end_entries(): all before the places. Throws Corrupt where a
  // tensor's chunks do not tile it. False also where a box is nobody's.
  DistEntries& next_entries() { return next_entries_; }
  bool end_entries();
  bool add_place(const Place& place) {
    next_places_.push_back(place);
    return next_places_.size() < kBehindMin || collect_places();
  }
  // After the last place: true if each chunk and object has one.
  bool finish();

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

  // Of so many boxes or places another thread makes chunks while the next ones are read: half of
  // that work are page faults. Of fewer they are made before a thread would have started.
  static constexpr size_t kBehindMin = 16384;

  bool collect_entries();
  bool collect_places();
  bool add_tensor(const DistEntries::Entry& entry, std::span<const DistEntries::Box> boxes);
  bool add_object(const DistEntries::Entry& entry);
  bool add_known(uint32_t key, Known entry);
  bool put_all(const std::vector<Place>& places);
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

  DistEntries next_entries_;
  std::vector<Place> next_places_;
  // What is being collected: it and the catalog belong to the task until that ends.
  DistEntries entries_;
  std::vector<Place> places_;
  TaskBehind collecting_;
};

}  // namespace ckpt
