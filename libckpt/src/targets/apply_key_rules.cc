// Which entries of a plain state dict are carried, and under which names.
#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/error.h>

#include "base/text.h"
#include "format/values/json_pointer.h"
#include "targets/plain_state.h"

namespace ckpt {
namespace {

// Takes `count` leading characters of the joined path away. Where that ends inside a step, the rest
// of the step stays one, without a separator in front.
std::vector<PathStep> without_front(const std::vector<PathStep>& path, size_t count) {
  std::vector<PathStep> rest;
  for (const PathStep& step : path) {
    if (count == 0) {
      rest.push_back(step);
    } else if (count < step.text.size()) {
      const bool at_separator = step.text[count] == '.' || step.text[count] == '/';
      const std::string left = step.text.substr(count + (at_separator ? 1 : 0));
      if (!left.empty()) rest.push_back({.text = left, .holder = step.holder});
      count = 0;
    } else {
      count -= std::min(count, step.text.size() + 1);  // with the dot behind it
    }
  }
  return rest;
}

// Renames entries. A step that keeps its text keeps its type, and of as many steps as there were a
// number stays a number: 0 does not become "1".
class Renamer {
 public:
  Renamer(const KeyRules& rules, PlainState& state) : rules_(rules), state_(state) {}

  void rename(PlainEntry& entry) {
    for (const KeyRename& rule : rules_.renames) {
      const auto renamed = rule.renamed(entry.key);
      if (renamed && *renamed != entry.key) return rename(rule, *renamed, entry);
    }
  }

 private:
  // A flat key stays one.
  void rename(const KeyRename& rule, const std::string& renamed, PlainEntry& entry) {
    if (entry.path.size() == 1) {
      entry.key = renamed;
      entry.path = {in_place_of(entry.path[0], renamed)};
      return;
    }
    const auto rest = without_front(entry.path, *rule.front_bytes(entry.key));
    const auto old = std::span(entry.path).first(entry.path.size() - rest.size());
    std::vector<PathStep> path = new_front(rule.to(), old);
    if (!path.empty()) path.front().holder = entry.path.front().holder;
    path.insert(path.end(), rest.begin(), rest.end());
    entry.key = joined(path);
    entry.path = std::move(path);
  }

  // Matched from behind, which is where the steps that stay are.
  std::vector<PathStep> new_front(const std::vector<std::string>& to,
                                  std::span<const PathStep> old) {
    std::vector<PathStep> steps;
    for (const std::string& text : to) steps.push_back({text});
    for (size_t i = 1; i <= std::min(steps.size(), old.size()); ++i) {
      PathStep& step = steps[steps.size() - i];
      const PathStep& was = old[old.size() - i];
      if (step.text != was.text && steps.size() != old.size()) break;
      step = in_place_of(was, step.text);
    }
    return steps;
  }

  PathStep in_place_of(const PathStep& was, const std::string& text) {
    if (text == was.text) return was;
    PathStep step{.text = text, .holder = was.holder};
    const auto number = number_in<int64_t>(text);
    const bool was_number = was.key && was.key->is(Kind::Int);
    if (!was_number || !number || std::to_string(*number) != text) return step;
    if (!state_.renamed_keys) state_.renamed_keys = std::make_shared<ValueTree>();
    step.key = state_.renamed_keys->value(state_.renamed_keys->integer(*number));
    return step;
  }

  const KeyRules& rules_;
  PlainState& state_;
};

// The pointers of the mappings and lists around entries, and their own.
TextSet places_around(const std::vector<PlainEntry>& entries) {
  TextSet places;
  for (const PlainEntry& entry : entries) {
    std::string pointer;
    for (const PathStep& step : entry.path) {
      pointer += pointer_step(step.text);
      places.insert(pointer);
    }
  }
  return places;
}

void list_mapping_losses(const KeyRules& rules, PlainState& state) {
  const bool takes_all = rules.selection.is_everything();
  const TextSet kept = takes_all ? TextSet() : places_around(state.entries);
  std::vector<NotCarried> listed;
  for (MappingLoss& loss : state.mapping_losses) {
    const bool is_kept = takes_all || loss.place.empty() || kept.contains(loss.place);
    if (is_kept) listed.push_back(std::move(loss.lost));
  }
  state.mapping_losses.clear();
  std::ranges::move(state.not_carried, std::back_inserter(listed));
  state.not_carried = std::move(listed);
}

}  // namespace

Applied apply(const TargetSpec& spec, PlainState& state) {
  KeyRules rules = spec.keys;
  std::vector<KeyName> names;
  for (const PlainEntry& entry : state.entries) names.push_back({{}, entry.key});
  rules.resolve(names);
  std::erase_if(state.entries, [&](const PlainEntry& entry) { return !rules.accepts(entry.key); });
  list_mapping_losses(rules, state);
  Applied applied{rules.left_out_count(), TypeChange(spec.types)};
  for (PlainEntry& entry : state.entries) {
    if (entry.tensor) entry.tensor = applied.types.apply(std::move(entry.tensor), entry.key);
  }
  TextSet keys;
  Renamer renamer(rules, state);
  for (PlainEntry& entry : state.entries) {
    renamer.rename(entry);
    if (keys.insert(entry.key).second && !entry.key.empty()) continue;
    if (rules.renames.empty()) continue;
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = entry.key},
                entry.key.empty() ? "--rename leaves a key without a name"
                                  : "--rename gives this name to two keys");
  }
  return applied;
}

}  // namespace ckpt
