#include "report/page/rows.h"

#include <algorithm>
#include <cmath>

namespace optim {
namespace {

using ckpt::StatisticsSum;

constexpr uint64_t kBlockBytes = StatisticsSum::kBlockBytes;

// Of larger tensors the picture is of a part of the blocks.
constexpr uint64_t kCountedWholeBytes = uint64_t{1} << 20;
constexpr unsigned kHistogramEvery = 8;

// Blocks are those of the storage: a range that starts within one has a shorter one first.
StatisticsSum sum_of(const ckpt::TensorEntry& tensor, std::span<const std::byte> bytes,
                     uint64_t offset_bytes) {
  const bool is_whole = ckpt::count_bytes(tensor) <= kCountedWholeBytes;
  StatisticsSum sum(tensor.dtype, is_whole ? 1 : kHistogramEvery);
  const uint64_t to_next = (kBlockBytes - offset_bytes % kBlockBytes) % kBlockBytes;
  const auto head = bytes.first(std::min<uint64_t>(to_next, bytes.size()));
  sum.add(head, offset_bytes / kBlockBytes);
  sum.add(bytes.subspan(head.size()), (offset_bytes + to_next) / kBlockBytes);
  return sum;
}

// --- histograms as small pictures ---

// Fewer than this share of the elements is not worth a bar of its own at the small end.
constexpr double kTailShare = 0.001;

// The exponents that the bars span: from the largest that there is down to the one below which next
// to nothing lies.
struct Span {
  int top = 0, bottom = 0;
};

Span span_of(const std::vector<ckpt::HistogramBin>& histogram) {
  Span span{histogram.front().exponent, histogram.front().exponent};
  uint64_t total = 0;
  std::vector<ckpt::HistogramBin> sorted = histogram;
  std::ranges::sort(sorted, {}, &ckpt::HistogramBin::exponent);
  for (const ckpt::HistogramBin& bin : sorted) total += bin.count;
  span.top = sorted.back().exponent;
  uint64_t below = 0;
  for (const ckpt::HistogramBin& bin : sorted) {
    span.bottom = bin.exponent;
    below += bin.count;
    if (static_cast<double>(below) > kTailShare * static_cast<double>(total)) break;
  }
  return span;
}

uint8_t height(uint64_t count, uint64_t most) {
  if (count == 0) return 0;
  const double share = static_cast<double>(count) / static_cast<double>(most);
  return static_cast<uint8_t>(std::max(1.0, std::round(share * HistogramBars::kHeightMax)));
}

}  // namespace

HistogramBars bars_of(const ckpt::Statistics& statistics) {
  HistogramBars bars;
  if (statistics.histogram.empty()) {
    bars.middle = statistics.zero_count != 0 ? HistogramBars::kHeightMax : 0;
    return bars;
  }
  const auto [top, bottom] = span_of(statistics.histogram);
  const auto bar_count = static_cast<int>(HistogramBars::kBarsMax);
  bars.top = top;
  bars.step = 1;
  while ((top - bottom + 1 + bars.step - 1) / bars.step > bar_count) bars.step *= 2;
  const auto used = static_cast<size_t>((top - bottom + bars.step) / bars.step);
  std::vector<uint64_t> negative(used), positive(used);
  uint64_t middle = statistics.zero_count;
  bool has_negative = false, has_positive = false;
  for (const ckpt::HistogramBin& bin : statistics.histogram) {
    const auto bar = static_cast<size_t>((top - bin.exponent) / bars.step);
    if (bar >= used) {
      middle += bin.count;
    } else {
      (bin.is_negative ? negative : positive)[bar] += bin.count;
      (bin.is_negative ? has_negative : has_positive) = true;
    }
  }
  uint64_t most = middle;
  for (size_t i = 0; i < used; ++i) most = std::max({most, negative[i], positive[i]});
  bars.middle = height(middle, most);
  for (size_t i = 0; i < used; ++i) {
    if (has_negative) bars.negative.push_back(height(negative[i], most));
    if (has_positive) bars.positive.push_back(height(positive[i], most));
  }
  return bars;
}

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
