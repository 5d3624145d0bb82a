#include "json_fields.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace optim {
namespace {

using nlohmann::json;

std::string range_text(int64_t least, int64_t most) {
  if (most == std::numeric_limits<int64_t>::max()) {
    return "a whole number of at least " + std::to_string(least);
  }
  return "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
}

bool is_whole(const json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMost) return false;
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

bool is_averaging(const json& value) {
  return value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1;
}

constexpr const char* kAveraging = "a number of at least 0 and below 1";

}  // namespace

std::string found_text(const json& value) {
  constexpr size_t kLengthMax = 60;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kLengthMax) text.replace(kLengthMax, text.npos, "...");
  return text;
}

JsonFields::JsonFields(std::string file, json object)
    : file_(std::move(file)), object_(std::move(object)) {}

bool JsonFields::has(const std::string& field) const { return object_.contains(field); }

const json& JsonFields::any(const std::string& field) const {
  known_.insert(field);
  const auto found = object_.find(field);
  if (found != object_.end()) return *found;
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file_, .key = field}, "is missing");
}

std::string JsonFields::text(const std::string& field) const {
  const json& value = any(field);
  if (!value.is_string()) refuse(field, "a string", value);
  return value.get<std::string>();
}

const json& JsonFields::list(const std::string& field, const std::string& expected) const {
  const json& value = any(field);
  if (!value.is_array()) refuse(field, expected, value);
  return value;
}

const json& JsonFields::list(const std::string& field, size_t count,
                             const std::string& expected) const {
  const json& value = list(field, expected);
  if (value.size() != count) refuse(field, expected, value);
  return value;
}

std::vector<std::string> JsonFields::texts(const std::string& field) const {
  const char* const expected = "a list of strings";
  const json& value = list(field, expected);
  if (!std::ranges::all_of(value, &json::is_string)) refuse(field, expected, value);
  return value.get<std::vector<std::string>>();
}

bool JsonFields::flag(const std::string& field) const {
  const json& value = any(field);
  if (!value.is_boolean()) refuse(field, "true or false", value);
  return value.get<bool>();
}

int64_t JsonFields::whole(const std::string& field, int64_t least, int64_t most) const {
  const json& value = any(field);
  if (!is_whole(value, least, most)) refuse(field, range_text(least, most), value);
  return value.get<int64_t>();
}

std::vector<int64_t> JsonFields::wholes(const std::string& field, size_t count, int64_t least,
                                        int64_t most) const {
  const std::string expected =
      "a list of " + std::to_string(count) + ", each " + range_text(least, most);
  const json& value = list(field, count, expected);
  const auto fits = [&](const json& element) { return is_whole(element, least, most); };
  if (!std::ranges::all_of(value, fits)) refuse(field, expected, value);
  return value.get<std::vector<int64_t>>();
}

double JsonFields::number(const std::string& field) const {
  const json& value = any(field);
  if (!value.is_number()) refuse(field, "a number", value);
  return value.get<double>();
}

double JsonFields::at_least_zero(const std::string& field) const {
  const json& value = any(field);
  const bool fits = value.is_number() && value.get<double>() >= 0;
  if (!fits) refuse(field, "a number of at least 0", value);
  return value.get<double>();
}

double JsonFields::averaging(const std::string& field) const {
  const json& value = any(field);
  if (!is_averaging(value)) refuse(field, kAveraging, value);
  return value.get<double>();
}

std::vector<double> JsonFields::numbers(const std::string& field, size_t count) const {
  const std::string expected = "a list of " + std::to_string(count) + " numbers";
  const json& value = list(field, count, expected);
  if (!std::ranges::all_of(value, &json::is_number)) refuse(field, expected, value);
  return value.get<std::vector<double>>();
}

std::vector<double> JsonFields::averagings(const std::string& field, size_t count) const {
  const std::string expected =
      "a list of " + std::to_string(count) + ", each " + std::string(kAveraging);
  const json& value = list(field, count, expected);
  if (!std::ranges::all_of(value, is_averaging)) refuse(field, expected, value);
  return value.get<std::vector<double>>();
}

JsonFields JsonFields::object(const std::string& field) const {
  const json& value = any(field);
  if (!value.is_object()) refuse(field, "an object", value);
  return {file_, value};
}

std::string JsonFields::one_of(const std::string& field,
                               std::initializer_list<std::string_view> names) const {
  const std::string value = text(field);
  if (std::ranges::find(names, value) != names.end()) return value;
  std::string all;
  for (const std::string_view name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  refuse_unsupported(field, "expected one of " + all + ", found " + found_text(value));
}

void JsonFields::refuse_others() const {
  std::string known;
  for (const std::string& field : known_) known += (known.empty() ? "" : ", ") + field;
  for (const auto& [field, value] : object_.items()) {
    if (known_.contains(field)) continue;
    refuse_unsupported(field, "is not a known field", "the fields are " + known);
  }
}

void JsonFields::refuse(const std::string& field, const std::string& expected,
                        const json& found) const {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file_, .key = field},
                    "expected " + expected + ", found " + found_text(found));
}

void JsonFields::refuse_unsupported(const std::string& field, const std::string& problem,
                                    const std::string& hint) const {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file_, .key = field}, problem, hint);
}

}  // namespace optim
