#include "report/page/figures_watch.h"

#include <algorithm>

namespace optim {
namespace {

using ckpt::StatisticsSum;

constexpr uint64_t kBlockBytes = StatisticsSum::kBlockBytes;

// Of larger tensors the picture is of a part of the blocks.
constexpr uint64_t kCountedWholeBytes = uint64_t{1} << 20;
constexpr unsigned kHistogramEvery = 8;

StatisticsSum empty_sum(const ckpt::TensorEntry& tensor) {
  const bool is_whole = ckpt::count_bytes(tensor) <= kCountedWholeBytes;
  return StatisticsSum(tensor.dtype, is_whole ? 1 : kHistogramEvery);
}

// Blocks are those of the storage: a range that starts within one has a shorter one first.
StatisticsSum sum_of(const ckpt::TensorEntry& tensor, std::span<const std::byte> bytes,
                     uint64_t offset_bytes) {
  StatisticsSum sum = empty_sum(tensor);
  const uint64_t to_next = (kBlockBytes - offset_bytes % kBlockBytes) % kBlockBytes;
  const auto head = bytes.first(std::min<uint64_t>(to_next, bytes.size()));
  sum.add(head, offset_bytes / kBlockBytes);
  sum.add(bytes.subspan(head.size()), (offset_bytes + to_next) / kBlockBytes);
  return sum;
}

}  // namespace

TensorFigures figures_of(const ckpt::Statistics& statistics) {
  return {statistics.element_count, statistics.zero_count, statistics.nan_count,
          statistics.inf_count,     statistics.moments,    bars_of(statistics)};
}

FiguresWatch::FiguresWatch(std::span<const TensorRef> tensors)
    : tensors_(tensors), left_bytes_(tensors.size()), figures_(tensors.size()) {
  for (size_t i = 0; i < tensors.size(); ++i) add(i);
  ranges_.put_in_order();
}

// A tensor is watched where each of its chunks is a run of whole elements.
void FiguresWatch::add(size_t number) {
  const ckpt::TensorEntry& tensor = *tensors_[number];
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  const auto is_run = [&](const ckpt::Chunk& chunk) {
    return !chunk.view && chunk.payload_offset_bytes % element_bytes == 0;
  };
  left_bytes_[number] = ckpt::count_bytes(tensor);
  if (left_bytes_[number] == 0) {
    figures_[number] = figures_of(StatisticsSum(tensor.dtype).result());
  }
  if (left_bytes_[number] == 0 || !std::ranges::all_of(tensor.chunks, is_run)) return;
  for (const ckpt::Chunk& chunk : tensor.chunks) {
    const uint64_t count_bytes = ckpt::element_count(chunk.box.sizes) * element_bytes;
    ranges_.add(chunk, count_bytes, number);
  }
}

void FiguresWatch::see(const ckpt::StoragePiece& piece) {
  ranges_.for_parts(piece, [&](const auto& range, uint64_t begin_bytes, auto bytes) {
    see(range.of, begin_bytes, bytes);
  });
}

// `begin_bytes`: of the bytes, in the storage.
void FiguresWatch::see(size_t number, uint64_t begin_bytes, std::span<const std::byte> bytes) {
  const ckpt::TensorEntry& tensor = *tensors_[number];
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  if (begin_bytes % element_bytes != 0 || bytes.size() % element_bytes != 0)
    return;  // a cut storage
  merge(number, sum_of(tensor, bytes, begin_bytes), bytes.size());
}

void FiguresWatch::merge(size_t tensor, StatisticsSum sum, uint64_t count_bytes) {
  Open& open = open_[tensor % kLocks];
  const std::scoped_lock lock(open.mutex);
  if (count_bytes > left_bytes_[tensor]) return;  // overlapping chunks, which verify tells
  left_bytes_[tensor] -= count_bytes;
  const auto known = open.sums.find(tensor);
  if (known != open.sums.end()) known->second.add(sum);
  if (left_bytes_[tensor] != 0) {
    if (known == open.sums.end()) open.sums.emplace(tensor, std::move(sum));
    return;
  }
  figures_[tensor] = figures_of((known == open.sums.end() ? sum : known->second).result());
  if (known != open.sums.end()) open.sums.erase(known);
}

}  // namespace optim
