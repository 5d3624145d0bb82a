#include <training/known_arguments.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "state/words.h"

namespace optim {

extern const std::string_view kKnownArguments;  // the columns of arguments.tsv that programs use

namespace {

std::string_view until(char end, std::string_view& text) {
  const size_t found = text.find(end);
  const std::string_view head = text.substr(0, found);
  text.remove_prefix(found == text.npos ? text.size() : found + 1);
  return head;
}

ArgumentClass class_named(std::string_view name) {
  constexpr std::array kNames = {std::pair("layout", ArgumentClass::Layout),
                                 std::pair("step", ArgumentClass::Step),
                                 std::pair("harmless", ArgumentClass::Harmless)};
  for (const auto& [known, kind] : kNames) {
    if (name == known) return kind;
  }
  return ArgumentClass::Refused;
}

std::vector<KnownArgument> parse_table() {
  std::vector<KnownArgument> rows;
  for (std::string_view rest = kKnownArguments; !rest.empty();) {
    std::string_view line = until('\n', rest);
    if (line.empty() || line.starts_with('#')) continue;
    KnownArgument row;
    row.name = until('\t', line);
    row.kind = class_named(until('\t', line));
    row.safe = until('\t', line);
    row.outcome = until('\t', line);
    row.options = until('\t', line);
    rows.push_back(row);
  }
  std::ranges::sort(rows, {}, &KnownArgument::name);
  return rows;
}

constexpr std::string_view kOfProviders = "*";
constexpr std::string_view kSafeOfProviders = "None, False";

// Texts as a command line has them; else what it is.
std::string text_of_list(const Value& list) {
  std::string words;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is(Kind::Str)) return "a list";
    words += (i == 0 ? "" : " ") + ckpt::escaped(list[i].text());
  }
  return list.size() == 0 ? "[]" : "'" + words + "'";
}

// As Python writes it, as far as a value can be safe.
std::string text_of(const Value& value) {
  switch (value.kind()) {
    case Kind::None: return "None";
    case Kind::Bool: return value.as_bool() ? "True" : "False";
    case Kind::Int: return std::to_string(value.as_int());
    case Kind::Float: return value.as_float() == 0 ? "0" : std::to_string(value.as_float());
    case Kind::Str: return "'" + ckpt::escaped(value.text()) + "'";
    case Kind::List: return text_of_list(value);
    default: return "an object";
  }
}

bool is_among(std::string_view list, std::string_view value) {
  while (!list.empty()) {
    std::string_view one = until(',', list);
    while (one.starts_with(' ')) one.remove_prefix(1);
    if (one == value) return true;
  }
  return false;
}

}  // namespace

const std::vector<KnownArgument>& known_arguments() {
  static const std::vector<KnownArgument> rows = parse_table();
  return rows;
}

static bool is_in_table(std::string_view name, ArgsOf origin) {
  const auto& rows = known_arguments();
  const auto row = std::ranges::lower_bound(rows, name, {}, &KnownArgument::name);
  const bool is_there = row != rows.end() && row->name == name;
  return is_there && (origin == ArgsOf::Bridge || row->safe != kOfProviders);
}

bool is_known_argument(std::string_view name) { return is_in_table(name, ArgsOf::MegatronLm); }

std::vector<std::string> unknown_arguments(const Value& args, ArgsOf origin) {
  std::vector<std::string> names;
  if (!args.is(Kind::Dict)) return names;
  for (const auto& [name, value] : ckpt::items_of(args)) {
    const bool is_known = name.is(Kind::Str) && is_in_table(name.text(), origin);
    if (!is_known) names.push_back(name.is(Kind::Str) ? ckpt::escaped(name.text()) : "not a text");
  }
  std::ranges::sort(names);
  return names;
}

std::vector<RefusedArgument> refused_arguments(const Value& args, ArgsOf origin) {
  std::vector<RefusedArgument> found;
  for (const KnownArgument& row : known_arguments()) {
    const bool is_of_provider = row.safe == kOfProviders;
    const bool is_refused =
        row.kind == ArgumentClass::Refused && (origin == ArgsOf::Bridge || !is_of_provider);
    const auto value = is_refused ? args.find(row.name) : std::nullopt;
    if (!value) continue;
    const std::string text = text_of(*value);
    if (is_among(is_of_provider ? kSafeOfProviders : row.safe, text)) continue;
    found.push_back({std::string(row.name),
                     "is " + text + ", and how parameters are laid out then is not known",
                     std::string(row.outcome)});
  }
  return found;
}

}  // namespace optim
