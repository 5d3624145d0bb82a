#include "inspect/statistics_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <ostream>

#include <common/table.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

std::string integer_text(const ckpt::Statistics::Integers& of, uint64_t bits) {
  return of.is_signed ? std::to_string(static_cast<int64_t>(bits)) : std::to_string(bits);
}

// NaN where there is none.
double sorted_value(const ckpt::Statistics& of, StatisticsSort sort) {
  if (sort == StatisticsSort::Nan) return static_cast<double>(of.nan_count + of.inf_count);
  if (!of.moments) return std::nan("");
  switch (sort) {
    case StatisticsSort::Norm: return of.moments->norm;
    case StatisticsSort::Std: return of.moments->std;
    default: return std::max(std::fabs(of.moments->min), std::fabs(of.moments->max));
  }
}

std::string quoted(const std::string& field) {
  if (field.find_first_of(",\"\n") == std::string::npos) return field;
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + '"';
}

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

// The quantiles of a row; none where it has none.
std::vector<std::string> quantile_texts(const ckpt::Statistics& statistics, NumberText text) {
  const auto& of = statistics.quantiles;
  if (!of) return {"-", "-", "-"};
  return {text(of->p1), text(of->p50), text(of->p99)};
}

bool have_quantiles(std::span<const NamedStatistics> rows) {
  return std::ranges::any_of(
      rows, [](const NamedStatistics& row) { return row.statistics.quantiles.has_value(); });
}

}  // namespace

std::vector<size_t> sorted_places(std::span<const ckpt::Statistics> rows, StatisticsSort sort) {
  std::vector<size_t> places(rows.size());
  std::iota(places.begin(), places.end(), size_t{0});
  if (sort == StatisticsSort::None) return places;
  std::ranges::stable_sort(places, [&](size_t a, size_t b) {
    const double x = sorted_value(rows[a], sort), y = sorted_value(rows[b], sort);
    return std::isnan(y) ? !std::isnan(x) : x > y;
  });
  return places;
}

std::vector<std::string> number_texts(const ckpt::Statistics& statistics, NumberText text) {
  const auto [min, max] = ends_text(statistics, text);
  std::vector<std::string> texts = {min, max};
  const auto& moments = statistics.moments;
  for (const auto of : {&ckpt::Statistics::Moments::mean, &ckpt::Statistics::Moments::std,
                        &ckpt::Statistics::Moments::norm}) {
    texts.push_back(moments ? moment_text((*moments).*of, text) : "-");
  }
  return texts;
}

void print_statistics(Console& console, std::span<const NamedStatistics> rows,
                      StatisticsSort sort) {
  const auto unless = [&](StatisticsSort column, int drop_order) {
    return sort == column ? 0 : drop_order;
  };
  const bool has_quantiles = have_quantiles(rows);
  // Quantiles were asked for: the ends go before them.
  const int ends = has_quantiles ? unless(StatisticsSort::Max, 7) : 0;
  const size_t kept_width = has_quantiles ? 24 : SIZE_MAX;
  std::vector<Column> columns = {
      {.title = "KEY", .can_shorten = true, .kept_width = kept_width, .is_name = true},
      {.title = "TYPE", .drop_order = 2},
      {.title = "SHAPE", .drop_order = 1},
      {.title = "MIN", .align = Align::Right, .drop_order = ends}};
  if (has_quantiles) {
    for (const char* title : {"1%", "50%", "99%"}) columns.push_back({title, Align::Right});
  }
  columns.insert(
      columns.end(),
      {{.title = "MAX", .align = Align::Right, .drop_order = ends},
       {.title = "MEAN", .align = Align::Right, .drop_order = 4},
       {.title = "STD", .align = Align::Right, .drop_order = unless(StatisticsSort::Std, 5)},
       {.title = "NORM", .align = Align::Right, .drop_order = unless(StatisticsSort::Norm, 6)},
       {.title = "ZEROS", .align = Align::Right, .drop_order = 3},
       {"NaN", Align::Right},
       {"Inf", Align::Right}});
  Table table(std::move(columns));
  bool has_any_bad = false;
  for (const auto& [key, type, shape, statistics] : rows) {
    const bool has_bad = statistics.nan_count + statistics.inf_count > 0;
    std::vector<Cell> row = {
        {key, has_bad ? Paint::Red : Paint::Bold}, {type, Paint::Cyan}, {shape}};
    std::vector<std::string> numbers = number_texts(statistics, short_number_text);
    if (has_quantiles) {
      std::ranges::move(quantile_texts(statistics, short_number_text),
                        std::inserter(numbers, numbers.begin() + 1));
    }
    for (std::string& text : numbers) row.push_back({std::move(text)});
    for (const uint64_t count :
         {statistics.zero_count, statistics.nan_count, statistics.inf_count}) {
      row.push_back({std::to_string(count)});
    }
    has_any_bad |= has_bad;
    table.add_row(std::move(row));
  }
  table.print(console);
  if (has_any_bad) console.print_text("NaN and Inf are left out of MEAN, STD and NORM");
}

void print_statistics_csv(Console& console, std::span<const NamedStatistics> rows) {
  std::ostream& out = console.out();
  const bool has_quantiles = have_quantiles(rows);
  out << "key,type,shape,min,max,mean,std,norm,zeros,nan,inf"
      << (has_quantiles ? ",p1,p50,p99\n" : "\n");
  for (const auto& [key, type, shape, statistics] : rows) {
    out << quoted(key) << ',' << type << ',' << quoted(shape);
    for (const std::string& text : number_texts(statistics, number_text)) {
      out << ',' << (text == "-" ? "" : text);
    }
    out << ',' << statistics.zero_count << ',' << statistics.nan_count << ','
        << statistics.inf_count;
    if (has_quantiles) {
      for (const std::string& text : quantile_texts(statistics, number_text)) {
        out << ',' << (text == "-" ? "" : text);
      }
    }
    out << '\n';
  }
}

}  // namespace tools::inspect
