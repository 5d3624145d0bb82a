#include "format/torch_dist/dist_collector.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/check_catalog.h"

namespace ckpt {

bool DistCollector::end_entries() {
  if (!collecting_.finish()) return false;
  std::swap(next_entries_, entries_);
  next_entries_.clear();
  if (entries_.boxes.size() < kBehindMin) return collect_entries();
  return collecting_.start([this] { return collect_entries(); });
}

bool DistCollector::collect_places() {
  if (!collecting_.finish()) return false;
  std::swap(next_places_, places_);
  next_places_.clear();
  return collecting_.start([this] { return put_all(places_); });
}

bool DistCollector::finish() {
  return collecting_.finish() && put_all(next_places_) && unplaced_ == 0;
}

bool DistCollector::collect_entries() {
  auto boxes = std::span<const DistEntries::Box>(entries_.boxes);
  for (const DistEntries::Entry& entry : entries_.entries) {
    if (entry.box_count > boxes.size()) return false;
    const auto own = boxes.first(entry.box_count);
    boxes = boxes.subspan(entry.box_count);
    if (entry.shape == nullptr ? !add_object(entry) : !add_tensor(entry, own)) return false;
  }
  return boxes.empty();
}

bool DistCollector::add_tensor(const DistEntries::Entry& entry,
                               std::span<const DistEntries::Box> boxes) {
  if (!add_known(entry.key, {What::Tensor, static_cast<uint32_t>(tensors_.size())})) return false;
  TensorEntry tensor{{}, *entry.name, entry.dtype, *entry.shape, {}};
  tensor.requires_grad = entry.requires_grad;
  tensor.chunks.reserve(boxes.size());
  for (const auto& [offsets, sizes] : boxes) tensor.chunks.push_back({{*offsets, *sizes}, {}});
  check_chunks(tensor);
  next_chunk_.push_back(0);
  unplaced_ += tensor.chunks.size();
  tensors_.push_back(std::move(tensor));
  return true;
}

bool DistCollector::add_object(const DistEntries::Entry& entry) {
  if (!add_known(entry.key, {What::Object, static_cast<uint32_t>(objects_.size())})) return false;
  objects_.push_back({{}, *entry.name, std::nullopt});
  ++unplaced_;
  return true;
}

bool DistCollector::add_known(uint32_t key, Known entry) {
  if (known(key).what != What::Nothing) return false;
  if (known_.size() <= key) known_.resize(std::max<size_t>(key + 1, 2 * known_.size()));
  known_[key] = entry;
  return true;
}

bool DistCollector::put_all(const std::vector<Place>& places) {
  return std::ranges::all_of(places, [this](const Place& place) {
    return place.offsets == nullptr ? place_object(place) : place_chunk(place);
  });
}

bool DistCollector::place_object(const Place& place) {
  const Known entry = known(place.key);
  if (entry.what != What::Object) return false;
  std::optional<StorageRegion>& region = objects_[entry.index].region;
  if (region) return false;
  set_region(region.emplace(), place);
  return true;
}

bool DistCollector::place_chunk(const Place& place) {
  const Known entry = known(place.key);
  if (entry.what != What::Tensor) return false;
  const auto chunk = chunk_at(entry.index, *place.offsets);
  if (!chunk) return false;
  next_chunk_[entry.index] = *chunk + 1;
  set_region(tensors_[entry.index].chunks[*chunk].region, place);
  return true;
}

// A chunk that has its place is no longer found: a second place for it is somebody else's question.
std::optional<uint32_t> DistCollector::chunk_at(uint32_t tensor, const Extents& offsets) {
  const std::vector<Chunk>& chunks = tensors_[tensor].chunks;
  const uint32_t next = next_chunk_[tensor];
  const auto offsets_of = [&](uint32_t i) -> const Extents& { return chunks[i].box.offsets; };
  const auto is_it = [&](uint32_t i) {
    return chunks[i].region.wrapping == Wrapping::None && offsets_of(i) == offsets;
  };
  if (next < chunks.size() && is_it(next)) return next;
  std::vector<uint32_t>& sorted = by_offsets_[tensor];
  if (sorted.empty()) {
    sorted.resize(chunks.size());
    std::iota(sorted.begin(), sorted.end(), 0u);
    std::ranges::sort(sorted, {}, offsets_of);
  }
  const auto found = std::ranges::lower_bound(sorted, offsets, {}, offsets_of);
  return found != sorted.end() && is_it(*found) ? std::optional(*found) : std::nullopt;
}

void DistCollector::set_region(StorageRegion& region, const Place& place) {
  if (ends_.size() <= place.file) ends_.resize(place.file + 1);
  uint64_t& end_bytes = ends_[place.file];
  do_regions_follow_ =
      do_regions_follow_ && place.bytes.offset_bytes >= end_bytes && place.bytes.count_bytes > 0;
  end_bytes = place.bytes.end_bytes();
  region.file = place.file;
  region.bytes = place.bytes;
  region.wrapping = Wrapping::TorchSave;
  --unplaced_;
}

}  // namespace ckpt
