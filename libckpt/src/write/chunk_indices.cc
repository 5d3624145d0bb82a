#include "write/chunk_indices.h"

#include <algorithm>

namespace ckpt {

namespace {

constexpr size_t kCopiesMin = 1024;  // fewer are indexed in the time that some kilobytes take

}  // namespace

std::shared_ptr<const OverlapIndex> ChunkIndices::index_of(const RecordPlan& record) {
  if (record.copies.size() < kCopiesMin) return nullptr;
  const std::scoped_lock lock(mutex_);
  const auto known = std::ranges::find(recent_, &record, &Entry::first);
  if (known != recent_.end()) return known->second;
  if (recent_.size() >= kept_max_) recent_.pop_front();
  recent_.emplace_back(&record, std::make_shared<OverlapIndex>(std::span(record.copies)));
  return recent_.back().second;
}

}  // namespace ckpt
