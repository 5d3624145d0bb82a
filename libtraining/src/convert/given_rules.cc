#include "convert/given_rules.h"

#include <ckpt/error.h>

#include "verify/checks.h"

namespace optim {
std::vector<std::string> other_splits(const ModelRules& rules) {
  std::vector<std::string> told;
  const ModelRules& built_in = ModelRules::built_in();
  for (const ModelRule& row : rules.rows()) {
    const uint32_t* const same = built_in.row_named(row.part, row.name);
    if (same == nullptr || built_in.rows()[*same].split == row.split) continue;
    told.push_back(
        "'" + ckpt::escaped(row.name) + "' is split as '" + std::string(name(row.split)) +
        "', as --model-rules says; Megatron's own module splits it as '" +
        std::string(name(built_in.rows()[*same].split)) + "', and no proof finds a wrong split");
  }
  return told;
}

void refuse_contradicted(const FiledState& state, const OpenedTraining& source, bool has_rules) {
  using Decides = ContradictedArg::Decides;
  const auto found = contradicted_arg(state, has_rules ? Decides::Shapes : Decides::Cut);
  if (!found) return;
  throw ckpt::Error(ckpt::ErrorCode::Corrupt,
                    {.file = source.shown_path(), .key = "args." + found->name}, found->problem,
                    has_rules ? "a row of --model-rules may have the wrong 'split'"
                              : "names and places of parameters follow from it; ckpt-inspect "
                                "verify SOURCE says more");
}

}  // namespace optim
