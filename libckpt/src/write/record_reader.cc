#include "write/record_reader.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <variant>

#include <ckpt/error.h>

#include "codec/crc32.h"
#include "write/archive_state.h"

namespace ckpt {
namespace {

constexpr size_t kCopiesMin = 1024;  // fewer are indexed in the time that some kilobytes take

// The checksum of a buffer, for which that of what comes into it as it is read serves.
class FilledBuffer {
 public:
  explicit FilledBuffer(std::span<const std::byte> buffer) : buffer_(buffer) {}

  // Bytes that were read, into the buffer or elsewhere; `crc`: theirs, if it is known.
  void note(std::span<const std::byte> bytes, std::optional<uint32_t> crc) {
    if (!lies_within(bytes)) return;
    if (filled_.empty()) filled_ = bytes.first(0);
    if (bytes.data() != filled_.data() + filled_.size()) return;
    crc_ = crc32_of_both(crc_, crc ? *crc : crc32(bytes), bytes.size());
    filled_ = {filled_.data(), filled_.size() + bytes.size()};
  }

  // Once all of the buffer is there. The rest is looked at: parts of elements at the ends, what
  // was put together.
  uint32_t crc() const {
    if (filled_.empty()) return crc32(buffer_);
    const auto head = buffer_.first(static_cast<size_t>(filled_.data() - buffer_.data()));
    const auto tail = buffer_.subspan(head.size() + filled_.size());
    return crc32(tail, crc32_of_both(crc32(head), crc_, filled_.size()));
  }

 private:
  bool lies_within(std::span<const std::byte> bytes) const {
    constexpr std::less<const std::byte*> kIsBefore;
    return !kIsBefore(bytes.data(), buffer_.data()) &&
           kIsBefore(bytes.data(), buffer_.data() + buffer_.size());
  }

  std::span<const std::byte> buffer_;
  std::span<const std::byte> filled_;  // of the buffer, without a gap
  uint32_t crc_ = 0;                   // of that
};

// The first segment of which something lies behind `offset_bytes`.
size_t first_behind(const std::vector<Segment>& segments, uint64_t offset_bytes) {
  const auto end_of = [](const Segment& segment) {
    return segment.offset_bytes +
           segment.element_count * bytes_per_element(segment.source.tensor->dtype);
  };
  const auto found = std::ranges::upper_bound(segments, offset_bytes, {}, end_of);
  return static_cast<size_t>(found - segments.begin());
}

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

uint32_t RecordReader::read(const TargetRecord& record, const RecordPlan& plan,
                            uint64_t offset_bytes, std::span<std::byte> out) {
  if (const auto* bytes = std::get_if<std::string>(&record.source)) {
    std::memcpy(out.data(), bytes->data() + offset_bytes, out.size());
    return crc32(out);
  }
  if (const auto* tensor = std::get_if<TensorSource>(&record.source)) {
    return read_tensor(*tensor, plan, offset_bytes, out);
  }
  if (const auto* segments = std::get_if<std::vector<Segment>>(&record.source)) {
    return read_segments(*segments, plan, offset_bytes, out);
  }
  return read_storage(record, offset_bytes, out);
}

void OverflowCounts::add(const std::string& key, uint64_t count) {
  const std::scoped_lock lock(mutex_);
  counts_[key] += count;
}

std::vector<ExecuteStats::Overflow> OverflowCounts::take() {
  std::vector<ExecuteStats::Overflow> taken;
  for (const auto& [key, count] : counts_) taken.push_back({key, count});
  counts_.clear();
  return taken;
}

void RecordReader::count_overflows(const BoxReader& reader, const std::string& key) const {
  const uint64_t count = reader.overflow_count();
  if (count != 0 && buffers_.overflows != nullptr) buffers_.overflows->add(key, count);
}

SharedBlocks* RecordReader::blocks_of(const RecordPlan& plan) const {
  const bool is_shared = buffers_.shared_reads.group_of(plan) != SharedReads::kAlone;
  return is_shared ? &buffers_.shared_blocks : nullptr;
}

uint32_t RecordReader::read_storage(const TargetRecord& record, uint64_t offset_bytes,
                                    std::span<std::byte> out) {
  const StorageRegion storage = source_.locate(std::get<StorageSource>(record.source).region);
  if (storage.bytes.count_bytes != record.count_bytes) {
    throw Error(ErrorCode::Corrupt, {source_.file_name(storage.file), storage.bytes.offset_bytes},
                "expected a storage of " + std::to_string(record.count_bytes) + " bytes, found " +
                    std::to_string(storage.bytes.count_bytes));
  }
  FilledBuffer filled(out);
  const AfterRead note = [&](const StorageRegion& located, uint64_t offset,
                             std::span<const std::byte> bytes) {
    filled.note(bytes, checker_.note(located, offset, bytes, {}));
  };
  read_in_slices({source_, note}, storage, offset_bytes, out);
  return filled.crc();
}

// The segments are short beside a window, so that each is read by a reader of its own; what they
// leave is zero.
uint32_t RecordReader::read_segments(const std::vector<Segment>& segments, const RecordPlan& plan,
                                     uint64_t offset_bytes, std::span<std::byte> out) {
  std::ranges::fill(out, std::byte{0});
  const uint64_t end_bytes = offset_bytes + out.size();
  for (auto s = first_behind(segments, offset_bytes);
       s < segments.size() && segments[s].offset_bytes < end_bytes; ++s) {
    const Segment& segment = segments[s];
    const TensorEntry& tensor = *segment.source.tensor;
    const uint64_t element_bytes = bytes_per_element(tensor.dtype);
    const uint64_t begin = std::max(segment.offset_bytes, offset_bytes);
    const uint64_t end =
        std::min(segment.offset_bytes + segment.element_count * element_bytes, end_bytes);
    const auto note = [&](const StorageRegion& located, uint64_t offset,
                          std::span<const std::byte> bytes) {
      checker_.note(located, offset, bytes, tensor.key);
    };
    const auto copies = equal_run(plan.copies, static_cast<uint32_t>(s), &CopyOp::segment);
    BoxReader reader(tensor, segment.source.box, source_,
                     {copies, nullptr, &buffers_.scratch, note, blocks_of(plan)});
    reader.read_at(segment.first_element * element_bytes + (begin - segment.offset_bytes),
                   out.subspan(begin - offset_bytes, end - begin));
    count_overflows(reader, tensor.key);
  }
  return crc32(out);
}

uint32_t RecordReader::read_tensor(const TensorSource& tensor, const RecordPlan& plan,
                                   uint64_t offset_bytes, std::span<std::byte> out) {
  const std::string& key = tensor.tensor->key;
  FilledBuffer filled(out);
  const auto note = [&](const StorageRegion& located, uint64_t offset,
                        std::span<const std::byte> bytes) {
    filled.note(bytes, checker_.note(located, offset, bytes, key));
  };
  within({}, key, [&] {
    const auto index = indices_.index_of(plan);
    BoxReader reader(*tensor.tensor, tensor.box, source_,
                     {plan.copies, index.get(), &buffers_.scratch, note, blocks_of(plan)});
    reader.read_at(offset_bytes, out);
    count_overflows(reader, key);
  });
  return filled.crc();
}

}  // namespace ckpt
