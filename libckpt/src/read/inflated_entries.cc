#include "read/inflated_entries.h"

#include <algorithm>

#include <ckpt/printed.h>

namespace ckpt {
namespace {

// An archive of one tensor is this much longer than its payload, at most.
constexpr uint64_t kArchiveFrameBytesMax = uint64_t{1} << 20;

}  // namespace

InflatedEntries::InflatedEntries(uint32_t file_count,
                                 std::function<const RandomAccess&(uint32_t)> open)
    : file_count_(file_count), open_file_(std::move(open)) {}

uint32_t InflatedEntries::add(const StorageRegion& entry, uint64_t count_bytes_max) {
  const std::scoped_lock lock(mutex_);
  const auto next = static_cast<uint32_t>(file_count_ + entries_.size());
  const auto [found, added] =
      numbers_.emplace(std::pair(entry.file, entry.bytes.offset_bytes), next);
  if (added) entries_.push_back({entry.file, entry.bytes, count_bytes_max});
  return found->second;
}

InflatedEntries::Entry InflatedEntries::entry(uint32_t file) const {
  const std::scoped_lock lock(mutex_);
  return entries_.at(file - file_count_);
}

uint32_t InflatedEntries::real_file(uint32_t file) const {
  return holds(file) ? entry(file).file : file;
}

std::shared_ptr<const ZstdStream> InflatedEntries::find_open(uint32_t file) const {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(open_, file, &Open::first);
  if (found == open_.end()) return nullptr;
  open_.splice(open_.begin(), open_, found);
  return found->second;
}

void InflatedEntries::keep(uint32_t file, std::shared_ptr<const ZstdStream> stream) const {
  const std::scoped_lock lock(mutex_);
  open_.emplace_front(file, std::move(stream));
  uint64_t kept_bytes = 0;
  for (auto at = open_.begin(); at != open_.end();) {
    kept_bytes += at->second->kept_bytes();
    at = kept_bytes > kKeptBytesMax && at != open_.begin() ? open_.erase(at) : std::next(at);
  }
}

// Two threads that want the same entry at the same time may both inflate it; the first stays.
std::shared_ptr<const ZstdStream> InflatedEntries::stream(uint32_t file) const {
  if (auto open = find_open(file)) return open;
  const Entry what = entry(file);
  auto made =
      std::make_shared<const ZstdStream>(open_file_(what.file), what.bytes, what.count_bytes_max);
  if (auto open = find_open(file)) return open;
  keep(file, made);
  return made;
}

uint64_t inflated_bytes_max(const TensorEntry* tensor, const Chunk* chunk, const Limits& limits) {
  if (tensor == nullptr) return limits.inflated_object_bytes_max;
  return element_count(chunk->box.sizes) * bytes_per_element(tensor->dtype) + kArchiveFrameBytesMax;
}

void check_entry(const TensorView& view, const TensorEntry& tensor, const Chunk& chunk,
                 const Where& where) {
  if (view.dtype == tensor.dtype && view.shape == chunk.box.sizes) return;
  throw Error(ErrorCode::Corrupt, where,
              "the entry holds " + std::string(ckpt::name(view.dtype)) + " " +
                  tuple_text(view.shape) + ", but .metadata says " +
                  std::string(ckpt::name(tensor.dtype)) + " " + tuple_text(chunk.box.sizes));
}

}  // namespace ckpt
