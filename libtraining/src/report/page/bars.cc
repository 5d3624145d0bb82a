// Histograms as small pictures.
#include <training/report_page.h>

#include <algorithm>
#include <cmath>

namespace optim {
namespace {

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

}  // namespace optim
