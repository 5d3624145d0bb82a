#include "json_fields.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <ckpt/named_file.h>
#include <ckpt/printed.h>

namespace optim {
namespace {

using nlohmann::json;

constexpr uint64_t kFileBytesMax = uint64_t{1} << 20;

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

std::string range_text(SettingRange range) {
  switch (range) {
    case SettingRange::Any: return "a number";
    case SettingRange::AtLeastZero: return "a number of at least 0";
    case SettingRange::AtLeastOne: return "a number of at least 1";
    case SettingRange::Averaging: break;
  }
  return "a number of at least 0 and below 1";
}

auto is_in(SettingRange range) {
  return [=](const json& value) {
    if (!value.is_number()) return false;
    const auto number = value.get<double>();
    if (range == SettingRange::Averaging) return number >= 0 && number < 1;
    return range == SettingRange::Any || number >= (range == SettingRange::AtLeastOne ? 1 : 0);
  };
}

// Of a list of `count`, each of which fits.
template <class Fits>
auto list_of(size_t count, Fits fits) {
  return [=](const json& value) {
    return value.is_array() && value.size() == count && std::ranges::all_of(value, fits);
  };
}

std::string list_text(size_t count, const std::string& of_each) {
  return "a list of " + std::to_string(count) + of_each;
}

}  // namespace

json read_json_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  const std::string text = ckpt::read_named_file(path, kFileBytesMax);
  // JSON allows a key twice in one object; which of the values counts, each reader says otherwise.
  std::vector<std::set<std::string>> keys;  // of the objects that are open, the outermost first
  std::optional<std::string> duplicate;
  const auto note_keys = [&](int /*depth*/, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event != json::parse_event_t::key) return true;
    const auto [key, is_new] = keys.back().insert(parsed.get<std::string>());
    if (!is_new && !duplicate) duplicate = *key;
    return true;
  };
  json value = json::parse(text, note_keys, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file}, "malformed JSON");
  }
  if (duplicate) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file, .key = *duplicate},
                      "appears twice in one object");
  }
  return value;
}

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

template <class Read, class Fits>
Read JsonFields::read(const std::string& field, const std::string& expected, Fits fits) const {
  const json& value = any(field);
  if (!fits(value)) refuse(field, expected, value);
  return value.get<Read>();
}

std::string JsonFields::text(const std::string& field) const {
  return read<std::string>(field, "a string", [](const json& v) { return v.is_string(); });
}

std::vector<std::string> JsonFields::texts(const std::string& field) const {
  return read<std::vector<std::string>>(field, "a list of strings", [](const json& value) {
    return value.is_array() && std::ranges::all_of(value, &json::is_string);
  });
}

bool JsonFields::flag(const std::string& field) const {
  return read<bool>(field, "true or false", [](const json& v) { return v.is_boolean(); });
}

int64_t JsonFields::whole(const std::string& field, int64_t least, int64_t most) const {
  return read<int64_t>(field, range_text(least, most),
                       [=](const json& value) { return is_whole(value, least, most); });
}

std::vector<int64_t> JsonFields::wholes(const std::string& field, size_t count, int64_t least,
                                        int64_t most) const {
  const auto fits = [=](const json& value) { return is_whole(value, least, most); };
  return read<std::vector<int64_t>>(field, list_text(count, ", each " + range_text(least, most)),
                                    list_of(count, fits));
}

double JsonFields::number(const std::string& field, SettingRange range) const {
  return read<double>(field, range_text(range), is_in(range));
}

std::vector<double> JsonFields::numbers(const std::string& field, size_t count,
                                        SettingRange each) const {
  const std::string text = each == SettingRange::Any ? " numbers" : ", each " + range_text(each);
  return read<std::vector<double>>(field, list_text(count, text), list_of(count, is_in(each)));
}

JsonFields JsonFields::object(const std::string& field) const {
  return {file_, read<json>(field, "an object", [](const json& v) { return v.is_object(); })};
}

std::string JsonFields::one_of(const std::string& field,
                               std::initializer_list<std::string_view> names) const {
  const std::string value = text(field);
  if (std::ranges::find(names, value) != names.end()) return value;
  refuse_unsupported(field,
                     "expected one of " + ckpt::joined(names) + ", found " + found_text(value));
}

void JsonFields::refuse_others() const {
  for (const auto& [field, value] : object_.items()) {
    if (known_.contains(field)) continue;
    refuse_unsupported(field, "is not a known field", "the fields are " + ckpt::joined(known_));
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
