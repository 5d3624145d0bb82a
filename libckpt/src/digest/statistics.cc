#include <ckpt/statistics.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <mutex>

#include <ckpt/error.h>

#include "digest/block_facts.h"
#include "digest/sums_and_quantiles.h"
#include "model/element.h"
#include "read/payload_reader.h"
#include "work/workers.h"

namespace ckpt {
namespace {

constexpr uint64_t kSlabBytes = uint64_t{4} << 20;
constexpr uint64_t kJobBytes = uint64_t{16} << 20;  // of one tensor, at a time

// Counts by exponent, of one sign, from the lowest bin that is not empty to the highest.
class ExponentRange {
 public:
  void add(size_t bin, uint64_t count) {
    if (count == 0) return;
    if (counts_.empty()) first_ = bin;
    if (bin < first_) {
      counts_.insert(counts_.begin(), first_ - bin, 0);
      first_ = bin;
    }
    if (bin - first_ >= counts_.size()) counts_.resize(bin - first_ + 1);
    counts_[bin - first_] += count;
  }
  void add(const ExponentRange& other) {
    for (size_t i = 0; i < other.counts_.size(); ++i) add(other.first_ + i, other.counts_[i]);
  }
  // From the lowest exponent.
  std::vector<HistogramBin> bins(bool is_negative) const {
    std::vector<HistogramBin> bins;
    for (size_t i = 0; i < counts_.size(); ++i) {
      const uint64_t count = counts_[i];
      if (count == 0) continue;
      bins.push_back(
          {static_cast<int>(first_ + i) + HistogramBin::kExponentMin, is_negative, count});
    }
    return bins;
  }

 private:
  size_t first_ = 0;
  std::vector<uint64_t> counts_;
};

// A part of a tensor; of several the sums are added up.
struct Job {
  size_t tensor = 0;
  ByteRange bytes;
};

std::vector<Job> make_jobs(std::span<const TensorEntry> tensors) {
  std::vector<Job> jobs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    ByteRange left{0, count_bytes(tensors[i])};
    do {  // an empty tensor has statistics, too
      const uint64_t count = std::min(left.count_bytes, kJobBytes);
      jobs.push_back({i, {left.offset_bytes, count}});
      left = {left.offset_bytes + count, left.count_bytes - count};
    } while (left.count_bytes != 0);
  }
  return jobs;
}

struct Read {
  const PayloadSource& source;
  const StatisticsWishes& wishes;
};

StatisticsSum sum_of(const TensorEntry& tensor, const ByteRange& bytes, const Read& read,
                     std::span<std::byte> slab) {
  StatisticsSum sum(tensor.dtype);
  if (read.wishes.has_quantiles) sum.count_quantiles();
  BoxReader reader(tensor, whole(tensor.shape), read.source);
  reader.seek(bytes.offset_bytes);
  for (uint64_t left = bytes.count_bytes; left != 0;) {
    const auto piece = slab.first(std::min<uint64_t>(left, slab.size()));
    reader.read(piece);
    sum.add(piece);
    left -= piece.size();
  }
  return sum;
}

std::vector<std::string> read_first_values(const TensorEntry& tensor, const PayloadSource& source,
                                           size_t count_max) {
  const uint64_t element_bytes = bytes_per_element(tensor.dtype);
  const uint64_t count = std::min<uint64_t>(count_max, element_count(tensor.shape));
  std::vector<std::byte> bytes(count * element_bytes);
  BoxReader reader(tensor, whole(tensor.shape), source);
  reader.read(bytes);
  std::vector<std::string> values;
  for (uint64_t i = 0; i < count; ++i) {
    values.push_back(element_text(tensor.dtype, bytes.data() + i * element_bytes));
  }
  return values;
}

// The sums of tensors of which parts are still to come.
class OpenSums {
 public:
  explicit OpenSums(std::span<const Job> jobs, size_t tensor_count) : left_(tensor_count) {
    for (const Job& job : jobs) ++left_[job.tensor];
  }
  // The sum of all parts, with the last.
  std::optional<StatisticsSum> add(size_t tensor, StatisticsSum part) {
    const std::scoped_lock lock(mutex_);
    const auto [open, is_first] = sums_.try_emplace(tensor, std::move(part));
    if (!is_first) open->second.add(part);
    if (--left_[tensor] != 0) return std::nullopt;
    StatisticsSum sum = std::move(open->second);
    sums_.erase(open);
    return sum;
  }

 private:
  std::mutex mutex_;
  std::vector<size_t> left_;
  std::map<size_t, StatisticsSum> sums_;
};

}  // namespace

// The mean is the sum by the count. The deviations from it are those within the blocks, and those
// of the blocks' means: the sum of (block's sum)^2 / count, less sum^2 / count, which nearly cancel
// where the mean is large, so that both are kept exactly.
struct StatisticsSum::State {
  DType dtype;
  unsigned histogram_every;
  Statistics counts = {};  // and integers
  uint64_t finite_count = 0;
  double min = INFINITY, max = -INFINITY;
  ExactSum sum = {}, squares_in_blocks = {}, squares_of_blocks = {};
  ExponentRange positive = {}, negative = {};
  std::unique_ptr<QuantileSketch> quantiles = nullptr;

  void add(const BlockFacts& facts) {
    counts.zero_count += facts.zero_count;
    counts.nan_count += facts.nan_count;
    counts.inf_count += facts.inf_count;
    if (facts.has_minus_inf) min = -INFINITY;
    if (facts.has_plus_inf) max = INFINITY;
    if (facts.finite_count == 0) return;
    finite_count += facts.finite_count;
    min = std::min(min, facts.min);
    max = std::max(max, facts.max);
    if (dtype == DType::Int64 || dtype == DType::UInt64) {
      add_ends({dtype == DType::Int64, facts.min_bits, facts.max_bits});
    }
    add_sums(facts);
  }
  void add_sums(const BlockFacts& facts) {
    const auto count = static_cast<double>(facts.finite_count);
    sum.add(facts.sum, facts.scale);
    squares_in_blocks.add(facts.squares, 2 * facts.scale);
    squares_of_blocks.add_quotient_of_square(facts.sum, count, 2 * facts.scale);
    if (facts.sum_low == 0) return;
    sum.add(facts.sum_low, facts.scale);
    squares_of_blocks.add(2 * facts.sum * facts.sum_low / count, 2 * facts.scale);
  }
  void add_ends(const Statistics::Integers& ends) {
    const auto is_less = [&](uint64_t a, uint64_t b) {
      return ends.is_signed ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
    };
    std::optional<Statistics::Integers>& known = counts.integers;
    if (!known) known = ends;
    known->min = std::min(known->min, ends.min, is_less);
    known->max = std::max(known->max, ends.max, is_less);
  }
  // `zeros`: of the elements that were counted; they are in the first bins.
  struct Zeros {
    uint64_t positive = 0, negative = 0;
  };
  void add(const ExponentCounts& exponents, const Zeros& zeros) {
    for (size_t bin = 0; bin < ExponentCounts::kNotFinite; ++bin) {
      const uint64_t above = exponents.count(bin) - (bin == 0 ? zeros.positive : 0);
      const uint64_t below =
          exponents.count(bin + ExponentCounts::kNegative) - (bin == 0 ? zeros.negative : 0);
      positive.add(bin, above * histogram_every);
      negative.add(bin, below * histogram_every);
    }
  }
  // Of a block that is not counted.
  void add_extremes(const BlockFacts& facts) {
    if (facts.finite_count == 0) return;
    for (const double value : {facts.min, facts.max}) {
      if (value != 0) (value < 0 ? negative : positive).add(exponent_bin(std::fabs(value)), 1);
    }
  }
  // Ends of buckets may lie beyond the elements.
  std::optional<Statistics::Quantiles> make_quantiles() const {
    if (!quantiles || finite_count == 0) return std::nullopt;
    const auto at = [&](unsigned percent) {
      return std::clamp(quantiles->value_at(percent, dtype), min, max) + 0.0;
    };
    return Statistics::Quantiles{at(1), at(50), at(99)};
  }
  // sum^2 / count, with the sum's own rounding error.
  ExactSum square_of_sum(double count) const {
    constexpr double kLarge = 0x1p480, kSmall = 0x1p-480;
    const double size = std::fabs(sum.value());
    const int scale = size < kLarge && (size > kSmall || size == 0) ? 0 : sum.magnitude();
    const ExactSum::Parts parts = sum.parts(scale);
    ExactSum square;
    square.add_quotient_of_square(parts.high, count, 2 * scale);
    square.add(2 * parts.high * parts.low / count, 2 * scale);
    return square;
  }
  std::optional<Statistics::Moments> moments() const {
    if (is_complex(dtype) || (finite_count == 0 && counts.inf_count == 0)) return std::nullopt;
    if (finite_count == 0) return Statistics::Moments{min, max, NAN, NAN, NAN};
    const auto count = static_cast<double>(finite_count);
    const ExactSum of_mean = square_of_sum(count);
    ExactSum between = squares_of_blocks;
    between.subtract(of_mean);
    Statistics::Moments moments{.min = min + 0.0,  // not minus zero, whatever came first
                                .max = max + 0.0,
                                .mean = sum.value() / count};
    const double deviations = squares_in_blocks.value() + std::max(between.value(), 0.0);
    const double squares = deviations + of_mean.value();
    constexpr double kSmall = 0x1p-900;
    const bool are_zero = min == 0 && max == 0 && of_mean.value() == 0;
    if (std::isfinite(squares) && (squares > kSmall || are_zero)) {
      moments.std = std::sqrt(deviations / count);
      moments.norm = std::sqrt(squares);
      return moments;
    }
    ExactSum all = squares_in_blocks;  // beyond the range of a double, but for their roots
    if (between.parts(between.magnitude()).high > 0) all.add(between);
    moments.std = all.root_of_share(count);
    all.add(of_mean);
    moments.norm = all.root_of_share(1);
    return moments;
  }
};

StatisticsSum::StatisticsSum(DType dtype, unsigned histogram_every)
    : state_(new State{.dtype = dtype, .histogram_every = histogram_every}) {}
StatisticsSum::StatisticsSum(StatisticsSum&&) noexcept = default;
StatisticsSum& StatisticsSum::operator=(StatisticsSum&&) noexcept = default;
StatisticsSum::~StatisticsSum() = default;

void StatisticsSum::count_quantiles() {
  if (!is_complex(state_->dtype)) state_->quantiles = std::make_unique<QuantileSketch>();
}

void StatisticsSum::add(std::span<const std::byte> elements, uint64_t first_block) {
  if (elements.empty()) return;
  State& state = *state_;
  if (state.quantiles) state.quantiles->add(state.dtype, elements);
  state.counts.element_count += elements.size() / bytes_per_element(state.dtype);
  ExponentCounts exponents;
  State::Zeros zeros;
  uint64_t counted_bytes = 0;
  const auto flush = [&] {
    if (counted_bytes != 0 && !is_complex(state.dtype)) state.add(exponents, zeros);
    exponents = {};
    zeros = {};
    counted_bytes = 0;
  };
  for (uint64_t number = first_block; !elements.empty(); ++number) {
    const auto block = elements.first(std::min<size_t>(elements.size(), kBlockBytes));
    const bool is_counted = number % state.histogram_every == 0;
    const BlockFacts facts = describe_block(state.dtype, block, is_counted ? &exponents : nullptr);
    state.add(facts);
    if (is_counted) {
      zeros.positive += facts.zero_count - facts.negative_zero_count;
      zeros.negative += facts.negative_zero_count;
      counted_bytes += block.size();
    } else if (!is_complex(state.dtype)) {
      state.add_extremes(facts);
    }
    elements = elements.subspan(block.size());
    if (counted_bytes >= ExponentCounts::kBytesMax) flush();
  }
  flush();
}

void StatisticsSum::add(const StatisticsSum& other) {
  State& state = *state_;
  const State& added = *other.state_;
  state.counts.element_count += added.counts.element_count;
  state.counts.zero_count += added.counts.zero_count;
  state.counts.nan_count += added.counts.nan_count;
  state.counts.inf_count += added.counts.inf_count;
  state.finite_count += added.finite_count;
  state.min = std::min(state.min, added.min);
  state.max = std::max(state.max, added.max);
  if (added.counts.integers) state.add_ends(*added.counts.integers);
  state.sum.add(added.sum);
  state.squares_in_blocks.add(added.squares_in_blocks);
  state.squares_of_blocks.add(added.squares_of_blocks);
  state.positive.add(added.positive);
  state.negative.add(added.negative);
  if (state.quantiles && added.quantiles) state.quantiles->add(*added.quantiles);
}

Statistics StatisticsSum::result() const {
  const State& state = *state_;
  Statistics result = state.counts;
  result.moments = state.moments();
  result.quantiles = state.make_quantiles();
  const std::vector<HistogramBin> negative = state.negative.bins(true);
  result.histogram.assign(negative.rbegin(), negative.rend());
  std::ranges::copy(state.positive.bins(false), std::back_inserter(result.histogram));
  return result;
}

Statistics make_statistics(const TensorEntry& tensor, const PayloadSource& source,
                           const StatisticsWishes& wishes) {
  const ByteRange all{0, count_bytes(tensor)};
  std::vector<std::byte> slab(std::min(all.count_bytes, kSlabBytes));
  Statistics statistics = sum_of(tensor, all, {source, wishes}, slab).result();
  statistics.first_values = read_first_values(tensor, source, wishes.first_values_max);
  return statistics;
}

std::vector<Statistics> make_statistics(std::span<const TensorEntry> tensors,
                                        const PayloadSource& source, const ExecuteOptions& options,
                                        const StatisticsWishes& wishes) {
  const std::vector<Job> jobs = make_jobs(tensors);
  uint64_t total_bytes = 0;
  for (const Job& job : jobs) total_bytes += job.bytes.count_bytes;
  WorkMeter meter(options, total_bytes);
  const PassingSource passing(source);
  OpenSums open(jobs, tensors.size());
  std::vector<Statistics> statistics(tensors.size());
  run_with_slabs(jobs.size(), options, [&](size_t index, std::span<std::byte> slab) {
    const Job& job = jobs[index];
    const TensorEntry& tensor = tensors[job.tensor];
    within(tensor.file, tensor.key, [&] {
      auto sum = open.add(job.tensor, sum_of(tensor, job.bytes, {passing, wishes}, slab));
      meter.advance(job.bytes.count_bytes);
      if (!sum) return;
      statistics[job.tensor] = sum->result();
      statistics[job.tensor].first_values =
          read_first_values(tensor, source, wishes.first_values_max);
    });
  });
  return statistics;
}

}  // namespace ckpt
