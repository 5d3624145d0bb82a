// What could be mended in a checkpoint, and how sure that is.
#include <optional>

#include <algorithm>

#include <ckpt/error.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
#include <training/repair.h>

#include "repair/common_of_other.h"
#include "repair/repair_state.h"

namespace optim {
namespace {

using Verdict = RepairFinding::Verdict;

RepairFinding find_common_state(const std::optional<std::string>& fault) {
  RepairFinding finding{.kind = RepairKind::CommonState, .text = "the common state can be used"};
  if (!fault) return finding;
  finding.verdict = Verdict::Mendable;
  finding.text = *fault + "; --like OTHER takes it from another checkpoint of the run";
  return finding;
}

RepairFinding not_looked_for(RepairKind kind, std::string why) {
  RepairFinding finding{.kind = kind, .text = "not looked for: " + std::move(why)};
  finding.verdict = Verdict::NotMendable;
  return finding;
}

RepairFinding find_shift_if_known(const FiledState& state, const OpenedTraining& source) {
  try {
    return find_shift(state, source);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    return not_looked_for(RepairKind::BucketShift, error.what());
  }
}

}  // namespace

std::string_view name(RepairKind kind) {
  switch (kind) {
    case RepairKind::BucketShift: return "bucket-shift";
    case RepairKind::GroupOrder: return "group-order";
    case RepairKind::CommonState: return "common-state";
  }
  return "";
}

bool RepairOptions::wants(RepairKind kind) const {
  return std::ranges::find(kinds, kind) != kinds.end();
}

std::vector<RepairFinding> find_repairs(const std::filesystem::path& checkpoint,
                                        const FindRepairsOptions& options) {
  const auto fault = fault_of_common_state(checkpoint, options);
  const bool is_replaced = fault && !options.like.empty();
  if (fault && !is_replaced) {
    const std::string why = "the common state cannot be used";
    return {not_looked_for(RepairKind::BucketShift, why),
            not_looked_for(RepairKind::GroupOrder, why), find_common_state(fault)};
  }
  ckpt::OpenOptions opening{.iteration = options.iteration, .limits = options.limits};
  if (is_replaced) opening.source = with_common_of(options.like, options.limits);
  const OpenedTraining opened = open_checkpoint(checkpoint, std::move(opening));
  const FiledState state = name_layer_wise(opened);
  return {find_shift_if_known(state, opened), find_group_order(state), find_common_state(fault)};
}

}  // namespace optim
