#include <algorithm>
#include <map>
#include <string_view>

#include <ckpt/document.h>
#include <ckpt/error.h>
#include <ckpt/target.h>

#include "format/safetensors/safetensors_header.h"
#include "targets/conservation.h"
#include "targets/plain_state.h"
#include "targets/plain_target.h"

namespace ckpt {
namespace {

// Conversions whose result would look like a checkpoint and be none.

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
    if (found.empty()) continue;
    if (count++ != 0) continue;
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

Target make_target(const Checkpoint& source, const TargetSpec& spec) {
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

}  // namespace ckpt
