#include "inspect/load/megatron_options.h"

#include <algorithm>
#include <map>

namespace tools::inspect {

extern const std::string_view kMegatronOptions;  // megatron_options.tsv

namespace {

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

MegatronOption::Kind kind_named(std::string_view name) {
  using enum MegatronOption::Kind;
  if (name == "value") return Value;
  if (name == "list") return List;
  if (name == "true") return True;
  return name == "false" ? False : Either;
}

// Rows of the table: trees, spellings, argument, kind, type, preset.
const std::vector<std::vector<std::string_view>>& rows() {
  static const auto all = [] {
    std::vector<std::vector<std::string_view>> found;
    for (const std::string_view line : parts_of(kMegatronOptions, '\n')) {
      if (!line.empty()) found.push_back(parts_of(line, '\t'));
    }
    return found;
  }();
  return all;
}

bool has(std::string_view trees, MegatronTree tree) {
  return trees[static_cast<size_t>(tree)] == '1';
}

}  // namespace

std::vector<MegatronOption> options_of(MegatronTree tree) {
  std::vector<MegatronOption> options;
  std::map<std::string_view, std::vector<std::string_view>> arguments;  // by spelling
  for (const auto& cells : rows()) {
    const auto spellings = parts_of(cells[1], ',');
    for (const std::string_view spelling : spellings) arguments[spelling].push_back(cells[2]);
    if (!has(cells[0], tree)) continue;
    options.push_back({.spellings = spellings,
                       .argument = cells[2],
                       .arguments = {},
                       .kind = kind_named(cells[3]),
                       .type = cells[4],
                       .preset = nlohmann::json::parse(cells[5])});
  }
  for (MegatronOption& option : options) option.arguments = arguments[option.spellings[0]];
  return options;
}

OptionIn where_is(std::string_view spelling, MegatronTree tree) {
  OptionIn found = OptionIn::None;
  for (const auto& cells : rows()) {
    if (std::ranges::count(parts_of(cells[1], ','), spelling) == 0) continue;
    if (has(cells[0], tree)) return OptionIn::Release;
    found = OptionIn::Others;
  }
  return found;
}

}  // namespace tools::inspect
