#include "inspect/page/report_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <span>

#include <common/json.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

using nlohmann::json;

// The printable characters but those that JSON or HTML write otherwise: " \ < > &.
constexpr uint64_t kBase = 90;
constexpr char kAlphabet[] =
    " !#$%'()*+,-./0123456789:;=?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~";
static_assert(sizeof kAlphabet == kBase + 1);

void put_digits(std::string& text, uint64_t number, size_t digits) {
  for (size_t i = 0; i < digits; ++i) {
    text += kAlphabet[number % kBase];
    number /= kBase;
  }
}

// Digits below 45 end a number; those from 45 have another one, of 45 times the weight, behind
// them.
constexpr uint64_t kHalf = kBase / 2;
void put_count(std::string& text, uint64_t number) {
  for (; number >= kHalf; number /= kHalf) text += kAlphabet[kHalf + number % kHalf];
  text += kAlphabet[number];
}

// --- numbers: two of them in five digits ---

// 0: none. 1: zero. Then kLevels of positive numbers, evenly by logarithm, and of negative ones.
constexpr uint64_t kCodes = 76843;  // its square is less than 90^5
constexpr uint64_t kLevels = (kCodes - 2) / 2;

struct LogRange {
  double low = 0, high = 0;
};

LogRange range_of(const std::vector<std::optional<double>>& numbers) {
  LogRange range{INFINITY, -INFINITY};
  for (const auto& number : numbers) {
    if (!number || *number == 0 || !std::isfinite(*number)) continue;
    range.low = std::min(range.low, std::log(std::fabs(*number)));
    range.high = std::max(range.high, std::log(std::fabs(*number)));
  }
  return range.low <= range.high ? range : LogRange{};
}

uint64_t code_of(const std::optional<double>& number, const LogRange& range) {
  if (!number || !std::isfinite(*number)) return 0;
  if (*number == 0) return 1;
  const double span = range.high - range.low;
  const double share = span > 0 ? (std::log(std::fabs(*number)) - range.low) / span : 0;
  const auto level = static_cast<uint64_t>(std::llround(share * static_cast<double>(kLevels - 1)));
  return 2 + level + (*number < 0 ? kLevels : 0);
}

json pack(const std::vector<std::optional<double>>& numbers) {
  const LogRange range = range_of(numbers);
  std::string text;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    const uint64_t first = code_of(numbers[i], range);
    const uint64_t second = i + 1 < numbers.size() ? code_of(numbers[i + 1], range) : 0;
    put_digits(text, first * kCodes + second, 5);
  }
  return {{"packed", text}, {"low", range.low}, {"high", range.high}};
}

// --- names ---

constexpr size_t kSharedMax = 9;  // steps with the name before
constexpr size_t kRestMax = 8;    // this many, or more

using Steps = std::vector<std::string_view>;

// The steps of all names, those that come most often first.
std::vector<std::string> ordered_steps(const std::vector<Steps>& names) {
  std::map<std::string_view, size_t> counts;
  for (const auto& name : names) {
    for (const std::string_view step : name) ++counts[step];
  }
  std::vector<std::string> steps;
  for (const auto& [step, count] : counts) steps.emplace_back(step);
  std::ranges::stable_sort(steps, std::greater<>(),
                           [&](const std::string& step) { return counts[step]; });
  return steps;
}

json pack(const std::vector<std::string>& texts) {
  std::vector<Steps> names;
  for (const std::string& text : texts) names.push_back(split(text, "."));
  const std::vector<std::string> steps = ordered_steps(names);
  std::map<std::string_view, size_t> numbers;
  for (const std::string& step : steps) numbers.emplace(step, numbers.size());
  std::string packed;
  Steps before;
  for (const auto& name : names) {
    const auto differs = std::ranges::mismatch(name, before).in1 - name.begin();
    const size_t shared = std::min(static_cast<size_t>(differs), kSharedMax);
    const size_t rest = name.size() - shared;
    packed += kAlphabet[shared * (kRestMax + 1) + std::min(rest, kRestMax)];
    if (rest >= kRestMax) put_count(packed, rest);
    for (size_t i = shared; i < name.size(); ++i) put_count(packed, numbers[name[i]]);
    before = name;
  }
  return {{"steps", json_texts(steps)}, {"packed", packed}};
}

// --- bars ---

constexpr size_t kFoldedBars = 3;
constexpr uint64_t kFoldedLevels = 6;

// The highest of each third, in few levels.
uint64_t folded(std::span<const uint8_t> bars, size_t part) {
  const size_t begin = bars.size() * part / kFoldedBars;
  const size_t end = bars.size() * (part + 1) / kFoldedBars;
  uint64_t highest = 0;
  for (size_t i = begin; i < end; ++i) highest = std::max<uint64_t>(highest, bars[i]);
  return (highest * (kFoldedLevels - 1) + optim::HistogramBars::kHeightMax - 1) /
         optim::HistogramBars::kHeightMax;
}

void put_folded(std::string& text, const optim::HistogramBars& bars) {
  const uint8_t middle[] = {bars.middle, bars.middle, bars.middle};
  uint64_t number = folded(middle, 0);
  for (size_t part = 0; part < kFoldedBars; ++part) {
    number = number * kFoldedLevels + folded(bars.negative, part);
    number = number * kFoldedLevels + folded(bars.positive, part);
  }
  put_digits(text, number, 3);
}

std::string heights_text(const std::vector<uint8_t>& heights) {
  constexpr char kDigits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string text;
  for (const uint8_t height : heights) text += kDigits[height];
  return text;
}

std::string bars_text(const optim::HistogramBars& bars) {
  return std::to_string(bars.top) + ":" + std::to_string(bars.step) + ":" +
         heights_text(bars.negative) + ":" + heights_text({bars.middle}) + ":" +
         heights_text(bars.positive);
}

json runs_of(const std::vector<uint64_t>& counts) {
  json runs = json::array();
  for (size_t i = 0; i < counts.size();) {
    size_t end = i;
    while (end < counts.size() && counts[end] == counts[i]) ++end;
    runs.push_back(counts[i]);
    runs.push_back(end - i);
    i = end;
  }
  return runs;
}

}  // namespace

double rounded(double number) {
  if (!std::isfinite(number)) return number;
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", number);
  return std::strtod(text, nullptr);
}

json number_column(const std::vector<std::optional<double>>& numbers, ColumnForm form) {
  if (form == ColumnForm::Packed) return pack(numbers);
  return json_list(numbers, [](const std::optional<double>& number) {
    return number && std::isfinite(*number) ? json(rounded(*number)) : json();
  });
}

json count_column(const std::vector<uint64_t>& counts, ColumnForm form) {
  if (form == ColumnForm::Plain) return counts;
  json runs = runs_of(counts);
  if (runs.size() < counts.size() / 4) return {{"runs", std::move(runs)}};
  std::string text;
  for (const uint64_t count : counts) put_count(text, count);
  return {{"packed", text}};
}

json sparse_column(const std::vector<uint64_t>& counts) {
  json rows = json::array(), present = json::array();
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    rows.push_back(i);
    present.push_back(counts[i]);
  }
  return {{"rows", std::move(rows)}, {"counts", std::move(present)}};
}

json name_column(const std::vector<std::string>& texts, ColumnForm form) {
  return form == ColumnForm::Packed ? pack(texts) : json_texts(texts);
}

json bars_column(const std::vector<optim::HistogramBars>& bars, ColumnForm form) {
  if (form == ColumnForm::Packed) {
    std::string text;
    for (const optim::HistogramBars& each : bars) put_folded(text, each);
    return {{"packed", text}};
  }
  return json_list(bars, bars_text);
}

}  // namespace tools::inspect
