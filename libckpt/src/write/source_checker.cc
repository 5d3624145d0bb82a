#include "write/source_checker.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <ckpt/error.h>
#include <ckpt/run_jobs.h>

#include "codec/crc32.h"
#include "write/archive_state.h"

namespace ckpt {

size_t SourceChecker::PlaceHash::operator()(const Place& place) const {
  // 2^64 divided by the golden ratio: neighbouring offsets of neighbouring files stay apart.
  return (place.bytes.offset_bytes + (uint64_t{place.file} << 48)) * 0x9E3779B97F4A7C15u;
}

// Adds a part to what is known; returns what of it is new.
std::vector<ByteRange> SourceChecker::claim(Ranges& known, ByteRange part) {
  std::vector<ByteRange> fresh;
  uint64_t at = part.offset_bytes;
  uint64_t first = part.offset_bytes;
  uint64_t end = part.end_bytes();
  auto range = known.upper_bound(first);
  if (range != known.begin() && std::prev(range)->second >= first) --range;
  while (range != known.end() && range->first <= part.end_bytes()) {
    if (range->first > at) fresh.push_back({at, range->first - at});
    at = std::max(at, range->second);
    first = std::min(first, range->first);
    end = std::max(end, range->second);
    range = known.erase(range);
  }
  if (at < part.end_bytes()) fresh.push_back({at, part.end_bytes() - at});
  known.emplace_hint(range, first, end);
  return fresh;
}

std::vector<ByteRange> SourceChecker::claim(Storages::value_type*& storage,
                                            const StorageRegion& located, ByteRange part,
                                            std::string_view key) {
  const std::scoped_lock lock(mutex_);
  const auto [entry, is_new] = storages_.try_emplace({located.file, located.bytes});
  storage = &*entry;
  if (is_new) {
    entry->second.stated_crc = *located.crc32;
    entry->second.known = std::make_unique<Ranges>();
    entry->second.key = key;
  }
  if (!entry->second.known) return {};
  return claim(*entry->second.known, part);
}

// True for the one who completes the storage.
bool SourceChecker::add(Storages::value_type& storage, uint32_t crc, uint64_t count_bytes) {
  const std::scoped_lock lock(mutex_);
  Storage& sum = storage.second;
  sum.crc ^= crc;
  sum.summed_bytes += count_bytes;
  if (sum.summed_bytes != storage.first.bytes.count_bytes) return false;
  sum.known.reset();
  return true;
}

std::optional<uint32_t> SourceChecker::note(const StorageRegion& located, uint64_t offset_bytes,
                                            std::span<const std::byte> bytes,
                                            std::string_view key) {
  if (bytes.empty() || !stated_crc(located)) return std::nullopt;
  Storages::value_type* storage = nullptr;
  const std::vector<ByteRange> fresh = claim(storage, located, {offset_bytes, bytes.size()}, key);
  if (fresh.empty()) return std::nullopt;
  uint32_t last = 0, sum = 0;
  uint64_t count_bytes = 0;
  for (const ByteRange& range : fresh) {
    const auto part = bytes.subspan(range.offset_bytes - offset_bytes, range.count_bytes);
    if (on_read_) on_read_(located, range.offset_bytes, part);
    last = crc32(part);
    sum ^= crc32_before(last, located.bytes.count_bytes - range.end_bytes());
    count_bytes += range.count_bytes;
  }
  if (add(*storage, sum, count_bytes) && storage->second.crc != storage->second.stated_crc) {
    throw_crc_mismatch(located, storage->second.crc, source_);
  }
  if (count_bytes != bytes.size()) return std::nullopt;
  return last;
}

size_t SourceChecker::gather_incomplete() {
  for (Storages::value_type& storage : storages_) {
    if (storage.second.known) incomplete_.push_back(&storage);
  }
  std::ranges::sort(incomplete_, {}, [](const Storages::value_type* storage) {
    const Place& place = storage->first;
    return std::tuple(place.file, place.bytes.offset_bytes, place.bytes.count_bytes);
  });
  return incomplete_.size();
}

void SourceChecker::complete(size_t index, std::span<std::byte> buffer) {
  const auto& [place, storage] = *incomplete_[index];
  StorageRegion located{.file = place.file, .bytes = place.bytes};
  located.crc32 = storage.stated_crc;
  const Ranges known = *storage.known;
  try {
    uint64_t at = 0;
    const auto read_up_to = [&, &key = storage.key](uint64_t end) {
      while (at < end) {
        const auto part = buffer.first(std::min<uint64_t>(buffer.size(), end - at));
        source_.read_bytes(located, at, part);
        note(located, at, part, key);
        at += part.size();
      }
    };
    for (const auto& [start, end] : known) {
      read_up_to(start);
      at = end;
    }
    read_up_to(place.bytes.count_bytes);
  } catch (Error& error) {
    throw error.within({.file = {}, .key = std::string(storage.key)});
  }
}

void check_sources(const Target& target, const Plan& plan, std::span<const Piece> pieces,
                   const Checkpoint& source, const ExecuteOptions& options) {
  std::set<const TensorEntry*> tensors;  // chunks of one are disjoint, so that none is read twice
  std::vector<StorageRegion> storages;
  for (const Piece& piece : pieces) {
    for (size_t r = piece.first_record; r < piece.end_record; ++r) {
      const TargetRecord& record = record_of(target, plan.records[r]);
      if (const auto* tensor = std::get_if<TensorSource>(&record.source)) {
        tensors.insert(tensor->tensor.get());
      } else if (const auto* storage = std::get_if<StorageSource>(&record.source)) {
        storages.push_back(storage->region);
      } else if (const auto* segments = std::get_if<std::vector<Segment>>(&record.source)) {
        for (const Segment& segment : *segments) {
          const uint64_t start = plan.records[r].offset_bytes + segment.offset_bytes;
          if (piece.own.offset_bytes <= start && start < piece.own.end_bytes()) {
            tensors.insert(segment.source.tensor.get());
          }
        }
      }
    }
  }
  for (const TensorEntry* tensor : tensors) {
    for (const Chunk& chunk : tensor->chunks) storages.push_back(chunk.region);
  }
  // Many tensors may lie in one storage.
  const auto place = [](const StorageRegion& region) {
    return std::tuple(region.file, region.bytes.offset_bytes, region.bytes.count_bytes);
  };
  std::ranges::sort(storages, {}, place);
  const auto are_same = [&](const auto& a, const auto& b) { return place(a) == place(b); };
  storages.erase(std::unique(storages.begin(), storages.end(), are_same), storages.end());
  run_jobs(storages.size(), thread_count(options.threads), [&](size_t job, unsigned) {
    if (options.stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
    check_storage_crc(source.locate(storages[job]), source);
  });
}

}  // namespace ckpt
