#include "inspect/statistics_text.h"

#include <algorithm>
#include <cmath>
#include <ostream>

#include <common/table.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

using ckpt::HistogramBin;

constexpr int kRowsMax = 24;
constexpr size_t kBarWidthMax = 40, kBarWidthMin = 8;

// Neighbouring bins of one sign, and the zeros between negative and positive ones.
struct HistogramRow {
  std::string from, to;
  uint64_t count = 0;
};

// The exponents of one sign that there are, or those that are shown.
struct Exponents {
  int first = HistogramBin::kExponentMax, last = HistogramBin::kExponentMin - 1;
  void add(int exponent) {
    first = std::min(first, exponent);
    last = std::max(last, exponent);
  }
  int count() const { return std::max(0, last - first + 1); }
  int rows(int step) const { return (count() + step - 1) / step; }
};

std::string power_text(int exponent, bool is_end) {
  if (!is_end && exponent == HistogramBin::kExponentMin) return "0";
  if (is_end && exponent > HistogramBin::kExponentMax) return "inf";
  return short_number_text(std::ldexp(1.0, exponent));
}

// Of one sign, from the smallest magnitude to the largest.
std::vector<HistogramRow> rows_of(const std::vector<HistogramBin>& bins, bool is_negative,
                                  int step) {
  Exponents exponents;
  for (const HistogramBin& bin : bins) {
    if (bin.is_negative == is_negative) exponents.add(bin.exponent);
  }
  std::vector<HistogramRow> rows;
  for (int first = exponents.first; first <= exponents.last; first += step) {
    const int end = std::min(first + step, exponents.last + 1);
    const std::string low = power_text(first, false), high = power_text(end, true);
    HistogramRow row{low, high, 0};
    if (is_negative) row = {"-" + high, low == "0" ? low : "-" + low, 0};
    for (const HistogramBin& bin : bins) {
      const bool is_in = bin.is_negative == is_negative && bin.exponent >= first;
      if (is_in && bin.exponent < end) row.count += bin.count;
    }
    rows.push_back(row);
  }
  return rows;
}

std::vector<HistogramRow> rows_of(const ckpt::Statistics& statistics) {
  Exponents negative, positive;
  for (const HistogramBin& bin : statistics.histogram) {
    (bin.is_negative ? negative : positive).add(bin.exponent);
  }
  int step = 1;
  while (negative.rows(step) + positive.rows(step) + 1 > kRowsMax) ++step;
  std::vector<HistogramRow> rows = rows_of(statistics.histogram, true, step);
  std::ranges::reverse(rows);
  if (statistics.zero_count > 0) rows.push_back({"0", "0", statistics.zero_count});
  const std::vector<HistogramRow> above = rows_of(statistics.histogram, false, step);
  rows.insert(rows.end(), above.begin(), above.end());
  return rows;
}

std::string bar_of(uint64_t count, uint64_t count_max, size_t width) {
  if (count == 0) return {};
  const double share = static_cast<double>(count) / static_cast<double>(count_max);
  const auto length = static_cast<size_t>(std::lround(share * static_cast<double>(width)));
  return std::string(std::max<size_t>(1, length), '#');
}

size_t bar_width(const Console& console, const std::vector<HistogramRow>& rows) {
  size_t from = 4, to = 2, count = 5;  // the titles
  for (const HistogramRow& row : rows) {
    from = std::max(from, row.from.size());
    to = std::max(to, row.to.size());
    count = std::max(count, std::to_string(row.count).size());
  }
  constexpr size_t kGaps = 2 + 3 * 2;
  const size_t used = from + to + count + kGaps;
  const size_t width = console.screen().width.value_or(80);
  return std::clamp(width - std::min(width, used), kBarWidthMin, kBarWidthMax);
}

std::string integer_text(const ckpt::Statistics::Integers& of, uint64_t bits) {
  return of.is_signed ? std::to_string(static_cast<int64_t>(bits)) : std::to_string(bits);
}

}  // namespace

std::pair<std::string, std::string> ends_text(const ckpt::Statistics& statistics, NumberText text) {
  if (const auto& of = statistics.integers) {
    return {integer_text(*of, of->min), integer_text(*of, of->max)};
  }
  if (!statistics.moments) return {"-", "-"};
  return {text(statistics.moments->min), text(statistics.moments->max)};
}

std::string moment_text(double value, NumberText text) {
  return std::isnan(value) ? "-" : std::isinf(value) ? "overflows" : text(value);
}

nlohmann::json end_json(const ckpt::Statistics& statistics, bool is_min) {
  if (const auto& of = statistics.integers) {
    const uint64_t bits = is_min ? of->min : of->max;
    return of->is_signed ? nlohmann::json(static_cast<int64_t>(bits)) : nlohmann::json(bits);
  }
  const double value = is_min ? statistics.moments->min : statistics.moments->max;
  return std::isinf(value) ? nlohmann::json(value < 0 ? "-inf" : "inf") : nlohmann::json(value);
}

void print_statistics(Console& console, std::span<const NamedStatistics> rows) {
  Table table({{.title = "KEY", .can_shorten = true},
               {.title = "TYPE", .drop_order = 2},
               {.title = "SHAPE", .drop_order = 1},
               {"MIN", Align::Right},
               {"MAX", Align::Right},
               {.title = "MEAN", .align = Align::Right, .drop_order = 4},
               {.title = "STD", .align = Align::Right, .drop_order = 5},
               {.title = "NORM", .align = Align::Right, .drop_order = 3},
               {"ZEROS", Align::Right},
               {"NaN", Align::Right},
               {"Inf", Align::Right}});
  for (const auto& [key, type, shape, statistics] : rows) {
    const auto& moments = statistics.moments;
    const auto number = [&](double value) {
      return moments ? moment_text(value, short_number_text) : "-";
    };
    const auto of = moments.value_or(ckpt::Statistics::Moments());
    const auto [min, max] = ends_text(statistics, short_number_text);
    const bool has_bad = statistics.nan_count + statistics.inf_count > 0;
    table.add_row({{key, has_bad ? Paint::Red : Paint::Bold},
                   {type, Paint::Cyan},
                   {shape},
                   {min},
                   {max},
                   {number(of.mean)},
                   {number(of.std)},
                   {number(of.norm)},
                   {std::to_string(statistics.zero_count)},
                   {std::to_string(statistics.nan_count)},
                   {std::to_string(statistics.inf_count)}});
  }
  table.print(console);
}

void print_histogram(Console& console, const ckpt::Statistics& statistics) {
  const std::vector<HistogramRow> rows = rows_of(statistics);
  if (rows.empty()) {
    console.out() << "  nothing to draw: no finite elements, or complex ones\n";
    return;
  }
  uint64_t count_max = 0;
  for (const HistogramRow& row : rows) count_max = std::max(count_max, row.count);
  const size_t width = bar_width(console, rows);
  Table table({{"FROM", Align::Right},
               {"TO", Align::Right},
               {"COUNT", Align::Right},
               {.title = "", .drop_order = 1}});
  for (const HistogramRow& row : rows) {
    table.add_row({{row.from},
                   {row.to},
                   {std::to_string(row.count)},
                   {bar_of(row.count, count_max, width), Paint::Cyan}});
  }
  table.print(console, "  ");
}

nlohmann::json histogram_to_json(const ckpt::Statistics& statistics) {
  nlohmann::json bins = nlohmann::json::array();
  for (const HistogramBin& bin : statistics.histogram) {
    bins.push_back(
        {{"exponent", bin.exponent}, {"negative", bin.is_negative}, {"count", bin.count}});
  }
  return bins;
}

}  // namespace tools::inspect
