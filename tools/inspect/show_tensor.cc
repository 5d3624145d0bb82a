// What `show` tells of a tensor: where it is, what its elements are like, and what they are.
#include "inspect/show_tensor.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/progress.h>
#include <common/table.h>
#include <common/text.h>
#include <training/value_at.h>

#include "inspect/statistics_table.h"
#include "inspect/value_text.h"

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

// Of a tensor with moments: one end. Infinities are strings, which JSON has no numbers for.
nlohmann::json end_json(const ckpt::Statistics& statistics, bool is_min) {
  if (const auto& of = statistics.integers) {
    const uint64_t bits = is_min ? of->min : of->max;
    return of->is_signed ? nlohmann::json(static_cast<int64_t>(bits)) : nlohmann::json(bits);
  }
  const double value = is_min ? statistics.moments->min : statistics.moments->max;
  return std::isinf(value) ? nlohmann::json(value < 0 ? "-inf" : "inf") : nlohmann::json(value);
}

// Magnitudes in powers of two, from the lowest value to the highest, as bars of '#'; at most 24
// rows, the terminal's width.
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
  return json_list(statistics.histogram, [](const HistogramBin& bin) -> nlohmann::json {
    return {{"exponent", bin.exponent}, {"negative", bin.is_negative}, {"count", bin.count}};
  });
}

using optim::Subject;

// The tensor in its file's value tree; only torch.save files have one.
std::optional<ckpt::Value> tensor_value(const Subject& subject,
                                        const optim::OpenedTraining& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  if (subject.is_logical) return std::nullopt;
  if (catalog.format != ckpt::Format::Torch) return std::nullopt;
  const ckpt::Document* document =
      subject.file.empty() ? checkpoint.state() : checkpoint.document(subject.file);
  return document == nullptr ? std::nullopt : optim::value_at(document->tree.root(), subject.key);
}

std::vector<ckpt::TensorAttribute> tensor_attributes(const Subject& subject,
                                                     const optim::OpenedTraining& checkpoint) {
  const auto value = tensor_value(subject, checkpoint);
  const auto tensor = value ? ckpt::as_tensor(*value) : std::nullopt;
  if (!tensor) return {};
  return attributes_of(value->tree(), *tensor);
}

std::string box_text(const ckpt::Box& box) {
  std::string text = "[";
  for (size_t i = 0; i < box.sizes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(box.offsets[i]) + ":" +
            std::to_string(box.offsets[i] + box.sizes[i]);
  }
  return text + "]";
}

void print_chunks(Console& console, const ckpt::TensorEntry& tensor, const ckpt::Catalog& catalog) {
  constexpr size_t kChunksMax = 20;
  const size_t limit = console.options().verbose ? SIZE_MAX : kChunksMax;
  Table table({{"CHUNK"},
               {.title = "FILE", .can_shorten = true},
               {"OFFSET", Align::Right},
               {"BYTES", Align::Right}});
  for (size_t i = 0; i < std::min(limit, tensor.chunks.size()); ++i) {
    const ckpt::Chunk& chunk = tensor.chunks[i];
    table.add_row({{box_text(chunk.box)},
                   {ckpt::escaped(catalog.files[chunk.region.file].path)},
                   {std::to_string(chunk.region.bytes.offset_bytes)},
                   {std::to_string(chunk.region.bytes.count_bytes)}});
  }
  table.print(console, "  ");
  if (tensor.chunks.size() > limit) {
    console.out() << "  ... " << tensor.chunks.size() - limit << " more (--verbose)\n";
  }
}

// As many of the first values as there is room for, each whole.
std::string values_text(const ckpt::Statistics& statistics, size_t width_max) {
  constexpr std::string_view kMore = ", ...";
  std::string text;
  size_t count = 0;
  for (const std::string& value : statistics.first_values) {
    const bool fits = text.size() + 2 + value.size() + kMore.size() <= width_max;
    if (count > 0 && !fits) break;
    text += (count++ == 0 ? "" : ", ") + value;
  }
  return count < statistics.element_count ? text + std::string(kMore) : text;
}

std::string shape_of(const ShownTensor& shown) {
  const std::string shape = shape_text(shown.source().tensor.shape);
  return shown.is_slice() ? shape + " of " + shape_text(shown.whole().shape) : shape;
}

void add_places(Table& facts, const ShownTensor& shown) {
  const ckpt::TensorEntry& tensor = shown.source().tensor;
  if (!tensor.file.empty()) facts.add_row({{"file"}, {ckpt::escaped(tensor.file)}});
  facts.add_row({{"dtype"}, {std::string(name(tensor.dtype))}});
  facts.add_row({{"shape"}, {shape_of(shown)}});
  facts.add_row({{"bytes"}, {std::to_string(count_bytes(tensor))}});
  facts.add_row({{"elements"}, {std::to_string(ckpt::element_count(tensor.shape))}});
  for (const auto& attribute : tensor_attributes(shown.subject(), shown.checkpoint())) {
    facts.add_row({{"@" + ckpt::escaped(attribute.name)}, {value_text(attribute.value)}});
  }
}

void add_statistics(Table& facts, const ckpt::Statistics& statistics, size_t values_width) {
  if (statistics.moments) {
    const std::vector<std::string> numbers = number_texts(statistics, number_text);
    for (size_t i = 0; i < numbers.size(); ++i) facts.add_row({{kNumberNames[i]}, {numbers[i]}});
  }
  facts.add_row({{"zeros"}, {std::to_string(statistics.zero_count)}});
  const auto left_out = [&](uint64_t count) {
    const bool is_told = count != 0 && statistics.moments.has_value();
    return std::to_string(count) + (is_told ? " (left out of mean, std and norm)" : "");
  };
  facts.add_row({{"NaN"}, {left_out(statistics.nan_count)}});
  facts.add_row({{"Inf"}, {left_out(statistics.inf_count)}});
  facts.add_row({{"values"}, {values_text(statistics, values_width)}});
}

void add_statistics(nlohmann::json& json, const ckpt::Statistics& statistics) {
  json.update({{"zeros", statistics.zero_count},
               {"nan", statistics.nan_count},
               {"inf", statistics.inf_count},
               {"first_values", statistics.first_values}});
  if (const auto& quantiles = statistics.quantiles) {
    json["quantiles"] = {{"p1", quantiles->p1}, {"p50", quantiles->p50}, {"p99", quantiles->p99}};
  }
  const auto& moments = statistics.moments;
  if (!moments) return;
  json.update({{"min", end_json(statistics, true)}, {"max", end_json(statistics, false)}});
  // Of elements near the end of a double's range they are none.
  for (const auto& [name, value] :
       {std::pair{"mean", moments->mean}, {"norm", moments->norm}, {"std", moments->std}}) {
    if (std::isfinite(value)) json[name] = value;
  }
}

nlohmann::json chunks_to_json(const ckpt::TensorEntry& tensor, const ckpt::Catalog& catalog) {
  return json_list(tensor.chunks, [&](const ckpt::Chunk& chunk) -> nlohmann::json {
    return {{"offsets", chunk.box.offsets},
            {"sizes", chunk.box.sizes},
            {"file", json_text(catalog.files[chunk.region.file].path)},
            {"offset_bytes", chunk.region.bytes.offset_bytes},
            {"bytes", chunk.region.bytes.count_bytes}};
  });
}

void print_asked_values(Console& console, const ShownTensor& shown, uint64_t values_max) {
  const TensorSource from = shown.source();
  console.out() << "  " << name(from.tensor.dtype) << ' ' << shape_of(shown) << '\n';
  print_values(console, from, values_max);
  const uint64_t count = ckpt::element_count(from.tensor.shape);
  if (values_max < count) {
    console.out() << "  " << values_max << " of " << count << " values (--values all)\n";
  }
}

}  // namespace

ShownTensor::ShownTensor(const Subject& subject, const optim::OpenedTraining& checkpoint)
    : subject_(subject), checkpoint_(checkpoint) {
  if (subject.slice) sliced_.emplace(*subject.tensor, *subject.slice, checkpoint);
}

TensorSource ShownTensor::source() const {
  if (sliced_) return {sliced_->entry(), *sliced_};
  return {*subject_.tensor, checkpoint_};
}

void print_tensor(Console& console, const ShownTensor& shown, const TensorWishes& wishes) {
  if (wishes.values_max) return print_asked_values(console, shown, *wishes.values_max);
  const TensorSource from = shown.source();
  Table facts({{}, {.can_shorten = true}});
  add_places(facts, shown);
  const ckpt::Statistics statistics = ckpt::make_statistics(from.tensor, from.source);
  constexpr size_t kNamesWidth = 2 + 8 + 2;  // of "elements", between margins
  const size_t width = console.screen().width.value_or(SIZE_MAX);
  add_statistics(facts, statistics, width - std::min(width, kNamesWidth));
  facts.print(console, "  ");
  if (wishes.histogram) return print_histogram(console, statistics);
  print_chunks(console, shown.whole(), shown.checkpoint().catalog());
}

nlohmann::json tensor_to_json(const ShownTensor& shown, const TensorWishes& wishes,
                              const ckpt::Statistics* known) {
  const auto& [tensor, source] = shown.source();
  nlohmann::json json = {{"dtype", name(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"bytes", count_bytes(tensor)},
                         {"elements", ckpt::element_count(tensor.shape)},
                         {"chunks", chunks_to_json(shown.whole(), shown.checkpoint().catalog())}};
  for (const auto& attribute : tensor_attributes(shown.subject(), shown.checkpoint())) {
    json["attributes"][json_text(attribute.name)] = value_to_json(attribute.value);
  }
  if (shown.is_slice()) json["slice_of"] = shown.whole().shape;
  if (wishes.values_max) {
    json["values"] = values_to_json(shown.source(), *wishes.values_max);
    return json;
  }
  const ckpt::Statistics statistics =
      known != nullptr ? *known : ckpt::make_statistics(tensor, source);
  add_statistics(json, statistics);
  if (wishes.histogram) json["histogram"] = histogram_to_json(statistics);
  return json;
}

std::vector<ckpt::Statistics> make_statistics(std::span<const Subject> subjects,
                                              const optim::OpenedTraining& checkpoint,
                                              const TensorWishes& wishes, Console& console) {
  const ckpt::StatisticsWishes wanted{.has_quantiles = wishes.quantiles};
  std::vector<ckpt::TensorEntry> whole;
  for (const Subject& subject : subjects) {
    if (subject.tensor != nullptr && !subject.slice) whole.push_back(*subject.tensor);
  }
  ProgressLine line(console, "reading");
  const std::vector<ckpt::Statistics> of_whole =
      ckpt::make_statistics(whole, checkpoint, make_execute_options(console, line), wanted);
  std::vector<ckpt::Statistics> all;
  size_t next = 0;
  for (const Subject& subject : subjects) {
    if (subject.tensor == nullptr) continue;
    if (!subject.slice) {
      all.push_back(of_whole[next++]);
      continue;
    }
    const ShownTensor shown(subject, checkpoint);
    all.push_back(ckpt::make_statistics(shown.source().tensor, shown.source().source, wanted));
  }
  return all;
}

}  // namespace tools::inspect
