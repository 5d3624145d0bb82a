#include <algorithm>

#include <ckpt/error.h>

#include "format/safetensors/safetensors_header.h"
#include "targets/conservation.h"
#include "targets/plain_target.h"
#include "targets/refusals.h"

namespace ckpt {
namespace {

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
  const uint64_t left_out_count = apply(spec.keys, state);
  if (source.catalog().format != spec.format) refuse_parts(state, source, row.called);
  // Of a file of empty mappings DCP holds nothing, as PyTorch does.
  const bool holds_values = !std::ranges::all_of(state.entries, &PlainEntry::is_empty_mapping);
  Holdings held = holdings_of(state);
  if (row.keeps_keys) held += holdings_of_mappings(state);
  const Holdings listed = listed_holdings(state, row.is_listed);
  Target target = row.make(std::move(state), spec);
  target.left_out_count = left_out_count;
  check_conserved(held, carried_by(target, held), listed);
  if (holds_values) refuse_empty(target, row.called);
  return target;
}

}  // namespace ckpt
