#include "convert/given_rules.h"

#include <algorithm>
#include <string_view>

#include <ckpt/error.h>

#include "verify/args_check.h"

namespace optim {
namespace {

std::string_view text_of_split(SplitKind split) {
  switch (split) {
    case SplitKind::Replicated: return "replicated";
    case SplitKind::Rows: return "rows";
    case SplitKind::Columns: return "columns";
    case SplitKind::GatedRows: return "gated_rows";
  }
  return {};
}

}  // namespace

std::vector<std::string> other_splits(const ModelRules& rules) {
  std::vector<std::string> told;
  for (const ModelRule& row : rules.rows()) {
    const auto& known = ModelRules::built_in().rows();
    const auto same = std::ranges::find_if(known, [&](const ModelRule& built_in) {
      return built_in.part == row.part && built_in.name == row.name;
    });
    if (same == known.end() || same->split == row.split) continue;
    told.push_back("'" + ckpt::escaped(row.name) + "' is split as '" +
                   std::string(text_of_split(row.split)) +
                   "', as --model-rules says; Megatron's own module splits it as '" +
                   std::string(text_of_split(same->split)) + "', and no proof finds a wrong split");
  }
  return told;
}

void refuse_contradicted(const TrainingState& state, const ckpt::Checkpoint& source) {
  const auto found = contradicted_arg(state);
  if (!found) return;
  throw ckpt::Error(ckpt::ErrorCode::Corrupt,
                    {.file = source.shown_path(), .key = "args." + found->name}, found->problem,
                    "a row of --model-rules may have the wrong 'split'");
}

}  // namespace optim
