// What is to be written of a checkpoint: which entries of a plain state dict are carried, and under
// which names.

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/document.h>
#include <ckpt/error.h>
#include <ckpt/folder_convention.h>
#include <ckpt/target.h>

#include "base/text.h"
#include "format/safetensors/safetensors_header.h"
#include "format/values/nesting.h"
#include "targets/conservation.h"
#include "targets/plain_state.h"
#include "targets/plain_target.h"

namespace ckpt {
namespace {

constexpr const char* kPartHint =
    "--to torch carries it unchanged, --exclude leaves it out; for whole tensors load the files of "
    "all ranks with the program that wrote them and save with torch.distributed.checkpoint, whose "
    "folder ckpt-convert reads";

using PartsByTensor = std::map<std::string, const TensorPart*, std::less<>>;

PartsByTensor by_tensor(const std::vector<TensorPart>& parts) {
  PartsByTensor known;
  for (const TensorPart& part : parts) {
    for (const std::string& tensor : part.tensors) known.emplace(tensor, &part);
  }
  return known;
}

// Of a torch.save file: its tensors may be shards by their names and storages alone.
std::vector<TensorPart> parts_of(const Checkpoint& source) {
  const Document* const document = source.state();
  return document == nullptr ? std::vector<TensorPart>() : parts_in(document->tree.root());
}

std::string text_of(const char* verb, const TensorPart& part, std::string_view target) {
  return verb + part.words + "; " + std::string(target) +
         (part.is_whole ? " holds plain tensors alone"
                        : " cannot say so, and it would be taken for the whole");
}

// Why an entry is refused, for what it is or has in it; empty where it is not.
std::string refusal_of(const PlainEntry& entry, const PartsByTensor& known,
                       std::string_view target) {
  if (entry.tensor) {
    const auto part = known.find(entry.tensor->key);
    return part == known.end() ? "" : text_of("is a ", *part->second, target);
  }
  const std::vector<TensorPart> inside = parts_in(entry.document->tree.value(entry.node));
  if (inside.empty()) return {};
  return text_of(inside.front().pointer.empty() ? "is a " : "holds a ", inside.front(), target);
}

// Throws Unsupported where an entry is, or has in it, what one rank holds of a tensor (TensorPart):
// under the tensor's name, in a format that cannot say so, it would be taken for the whole.
// `target`: what the result is called.
void refuse_parts(const PlainState& state, const Checkpoint& source, std::string_view target) {
  const std::vector<TensorPart> parts = parts_of(source);
  const PartsByTensor known = by_tensor(parts);
  const PlainEntry* first = nullptr;
  std::string words;
  size_t count = 0;
  for (const PlainEntry& entry : state.entries) {
    std::string found = refusal_of(entry, known, target);
    if (found.empty() || count++ != 0) continue;
    first = &entry;
    words = std::move(found);
  }
  if (first == nullptr) return;
  const std::string others = count == 1 ? "" : "; so are " + std::to_string(count - 1) + " more";
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = first->key},
              words + others, kPartHint);
}

// Throws Unsupported where a target holds nothing. To be called where the source holds something.
void refuse_empty(const Target& target, std::string_view called) {
  if (holdings_of(target) != Holdings()) return;
  const std::string why = target.not_carried.empty() ? ""
                                                     : ": " + target.not_carried.back().what +
                                                           ": " + target.not_carried.back().reason;
  throw Error(ErrorCode::Unsupported, {},
              "nothing that is selected can be stored in " + std::string(called) +
                  "; the result would be empty" + why,
              "--to torch holds all of it, --to torch_dist tensors and objects; ckpt-inspect show "
              "prints it");
}

// Such folders carry more than a state dict: who knows the convention knows what they would lose.
void refuse_convention(const Checkpoint& source) {
  const FolderConvention* const convention = source.convention();
  if (convention == nullptr) return;
  throw Error(
      ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
      "is a " + std::string(convention->framework) + " checkpoint; expected a plain state dict",
      std::string(convention->commands_hint));
}

bool is_not_safetensors(const PlainEntry& entry) {
  return !entry.tensor || safetensors_refusal(entry.key, entry.tensor->dtype);
}

// A torch.save file is one object, which holds all.
Holdings carried_by(const Target& target, const Holdings& held) {
  Holdings carried = holdings_of(target);
  if (target.format == Format::Torch) carried.objects = held.objects;
  return carried;
}

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

std::vector<TargetRow>& target_rows() {
  static std::vector<TargetRow> rows = {
      {Format::Torch, "a new file", plain_torch_target, [](const PlainEntry&) { return false; },
       true},
      {Format::TorchDist, "DCP", plain_torch_dist_target,
       [](const PlainEntry& entry) { return entry.is_empty_mapping; }},
      {Format::Safetensors, "safetensors", plain_safetensors_target, is_not_safetensors},
  };
  return rows;
}

const TargetRow& target_row_of(Format format) {
  const auto row = std::ranges::find(target_rows(), format, &TargetRow::format);
  if (row != target_rows().end()) return *row;
  throw Error(ErrorCode::Unsupported, {}, std::string(name(format)) + " is not written");
}

std::vector<Format> target_formats() {
  std::vector<Format> formats;
  for (const TargetRow& row : target_rows()) formats.push_back(row.format);
  return formats;
}

Target make_rank_files(const Checkpoint& source, const TargetSpec& spec, MeshSizes sizes) {
  refuse_convention(source);
  const TargetRow& row = target_row_of(spec.format);
  PlainState state = read_plain_state(source, row.words());
  const Applied applied = apply(spec, state);
  if (!holds_rank_files(source)) refuse_parts(state, source, row.called);
  Target target = rank_files_target(source, std::move(state), {spec, sizes});
  target.left_out_count = applied.left_out_count;
  return target;
}

Target make_target(const Checkpoint& source, const TargetSpec& spec) {
  if (spec.ranks != 0) return make_rank_files(source, spec, {});
  refuse_convention(source);
  const TargetRow& row = target_row_of(spec.format);
  PlainState state = read_plain_state(source, row.words());
  const Applied applied = apply(spec, state);
  if (source.catalog().format != spec.format) refuse_parts(state, source, row.called);
  // Of a file of empty mappings DCP holds nothing, as PyTorch does.
  const bool holds_values = !std::ranges::all_of(state.entries, &PlainEntry::is_empty_mapping);
  Holdings held = holdings_of(state);
  if (row.keeps_keys) held += holdings_of_mappings(state);
  const Holdings listed = listed_holdings(state, row.is_listed);
  Target target = row.make(std::move(state), spec);
  target.left_out_count = applied.left_out_count;
  applied.types.report(target);
  check_conserved(held, carried_by(target, held), listed);
  if (holds_values) refuse_empty(target, row.called);
  return target;
}

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
  if (spec.ranks != 0) number_for_rank_files(spec.ranks, state);
  return applied;
}

}  // namespace ckpt
