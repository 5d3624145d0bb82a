// The iteration that a checkpoint's state was saved at, against the one that its folder names.
#include <training/megatron_folders.h>

#include "args/common_state.h"
#include "verify/checks.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

std::optional<int64_t> saved_iteration(const Value& state) {
  const auto iteration = state.is(Kind::Dict) ? state.find("iteration") : std::nullopt;
  if (!iteration || !iteration->is(Kind::Int)) return std::nullopt;
  return iteration->as_int();
}

ckpt::Finding other_iteration(ckpt::Where where, int64_t saved, int64_t named) {
  return {ckpt::CheckKind::Meaning, ckpt::Severity::Damage, std::move(where),
          "the state is from iteration " + std::to_string(saved) + ", but the folder's name says " +
              std::to_string(named),
          "Megatron continues from the iteration in the state; the folder may have been renamed, "
          "or copied into"};
}

}  // namespace

std::vector<ckpt::Finding> find_other_iterations(const OpenedTraining& checkpoint) {
  std::vector<ckpt::Finding> findings;
  const auto named = checkpoint.catalog().iteration;
  if (!named || !is_megatron(checkpoint)) return findings;
  const auto compare = [&](const Value& state, ckpt::Where where) {
    const auto saved = saved_iteration(state);
    if (saved && *saved != *named) {
      findings.push_back(other_iteration(std::move(where), *saved, *named));
    }
  };
  if (checkpoint.catalog().format == ckpt::Format::TorchDist) {
    const CommonState* const common = checkpoint.common_state();
    if (common == nullptr) return findings;
    compare(common->document->tree.root(),
            {checkpoint.shown_name(common->file), std::nullopt, common->key + "/iteration"});
    return findings;
  }
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const ckpt::Document* document = checkpoint.document(file.path);
    if (document == nullptr) continue;
    compare(document->tree.root(), {checkpoint.shown_name(file.path), std::nullopt, "/iteration"});
  }
  return findings;
}

}  // namespace optim
