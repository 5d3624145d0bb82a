#include "format/dist_collector.h"

#include <algorithm>
#include <numeric>

#include "model/check_catalog.h"

namespace ckpt {

uint32_t DistCollector::add_tensor(DType dtype, uint32_t shape, std::span<const ChunkBox> chunks) {
  TensorEntry tensor{{}, {}, dtype, extents_.extents(shape), {}};
  tensor.chunks.reserve(chunks.size());
  for (const ChunkBox& box : chunks) {
    tensor.chunks.push_back({{extents_.extents(box.offsets), extents_.extents(box.sizes)}, {}});
  }
  tensors_.push_back(std::move(tensor));
  next_chunk_.push_back(0);
  unplaced_ += chunks.size();
  return static_cast<uint32_t>(tensors_.size() - 1);
}

bool DistCollector::name_entry(uint32_t key, Entry entry) {
  if (entries_.size() < texts_.size()) entries_.resize(texts_.size());
  if (entries_[key].what != What::Nothing) return false;
  entries_[key] = entry;
  keys_.push_back(key);
  return true;
}

bool DistCollector::name_tensor(uint32_t tensor, uint32_t key) {
  if (tensor != named_tensors_ || !name_entry(key, {What::Tensor, tensor})) return false;
  ++named_tensors_;
  tensors_[tensor].key = texts_[key];
  check_chunks(tensors_[tensor]);
  return true;
}

bool DistCollector::name_object(uint32_t key) {
  const auto object = static_cast<uint32_t>(objects_.size());
  if (!name_entry(key, {What::Object, object})) return false;
  objects_.push_back({{}, std::string(texts_[key]), std::nullopt});
  ++unplaced_;
  return true;
}

bool DistCollector::place_object(uint32_t key, const Place& place) {
  const Entry entry = entry_of(key);
  if (entry.what != What::Object) return false;
  std::optional<StorageRegion>& region = objects_[entry.index].region;
  if (region) return false;
  return set_region(region.emplace(), place);
}

bool DistCollector::place_chunk(uint32_t key, uint32_t offsets, const Place& place) {
  const Entry entry = entry_of(key);
  if (entry.what != What::Tensor) return false;
  const auto chunk = chunk_at(entry.index, offsets);
  if (!chunk) return false;
  next_chunk_[entry.index] = *chunk + 1;
  return set_region(tensors_[entry.index].chunks[*chunk].region, place);
}

// A chunk that has its place is no longer found: a second place for it is somebody else's question.
std::optional<uint32_t> DistCollector::chunk_at(uint32_t tensor, uint32_t offsets) {
  const std::vector<Chunk>& chunks = tensors_[tensor].chunks;
  const uint32_t next = next_chunk_[tensor];
  const auto is_free = [&](uint32_t i) { return chunks[i].region.wrapping == Wrapping::None; };
  if (next < chunks.size() && is_at(chunks[next], offsets) && is_free(next)) return next;
  std::vector<uint32_t>& sorted = by_offsets_[tensor];
  const auto offsets_of = [&](uint32_t i) -> const Extents& { return chunks[i].box.offsets; };
  if (sorted.empty()) {
    sorted.resize(chunks.size());
    std::iota(sorted.begin(), sorted.end(), 0u);
    std::ranges::sort(sorted, {}, offsets_of);
  }
  const auto found = std::ranges::lower_bound(sorted, extents_.extents(offsets), {}, offsets_of);
  if (found == sorted.end() || !is_at(chunks[*found], offsets) || !is_free(*found)) {
    return std::nullopt;
  }
  return *found;
}

bool DistCollector::is_at(const Chunk& chunk, uint32_t offsets) const {
  return std::ranges::equal(chunk.box.offsets, extents_[offsets]);
}

bool DistCollector::set_region(StorageRegion& region, const Place& place) {
  if (file_of_path_.size() < texts_.size()) file_of_path_.resize(texts_.size());
  uint32_t& file = file_of_path_[place.path];
  if (file == 0) {
    if (!is_plain_file_name(texts_[place.path])) return false;
    files_.emplace_back(texts_[place.path]);
    file = static_cast<uint32_t>(files_.size());
  }
  region.file = file - 1;
  region.bytes = place.bytes;
  region.wrapping = Wrapping::TorchSave;
  --unplaced_;
  return true;
}

DistMetadata DistCollector::take() {
  return {std::move(files_), std::move(tensors_), std::move(objects_), {}};
}

}  // namespace ckpt
