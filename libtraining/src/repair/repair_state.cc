// Which repairs a training state gets: each kind is found first, and applied where it explains what
// is wrong.
#include "repair/repair_state.h"

#include <algorithm>
#include <map>
#include <optional>

#include <ckpt/error.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
#include <training/repair.h>

#include "grid/layer_wise_view.h"
#include "grid/target_groups.h"
#include "repair/common_of_other.h"
#include "repair/shifted_state.h"
#include "state/left_out.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using Verdict = RepairFinding::Verdict;
using ckpt::Value;

constexpr size_t kShownMax = 64;  // in one message

std::vector<LostElements> lost_of(const ShiftedState& shifted) {
  std::map<uint32_t, uint64_t> counts;
  for (const LostRun& run : shifted.lost) {
    counts[run.param] += run.elements.end - run.elements.begin;
  }
  std::vector<LostElements> lost;
  for (const auto& [param, count] : counts) {
    const TrainedParam& of = shifted.state.params[param];
    lost.push_back({of.info.name, count, ckpt::element_count(of.weight->shape)});
  }
  return lost;
}

RepairFinding describe(const std::optional<FoundShift>& found) {
  RepairFinding finding{.kind = RepairKind::BucketShift, .text = "no state is displaced"};
  if (!found || found->shift.is_sound()) return finding;
  const BucketShift& shift = found->shift;
  finding.compared_count = shift.found_count();
  finding.right_count = shift.matching_count;
  const std::string counts = std::to_string(shift.matching_count) + " of " +
                             std::to_string(shift.found_count()) + " masters";
  if (!shift.explains()) {
    finding.verdict = Verdict::NotMendable;
    finding.text =
        "masters do not round to their weights, but not because they are displaced: " + counts +
        " would if they were moved, which is less than 99.9 %";
    return finding;
  }
  finding.verdict = Verdict::Mendable;
  finding.lost = lost_of(found->shifted);
  finding.text = "masters and moments of " + counted(shift.param_count, "parameter") + " lie " +
                 std::to_string(shift.least) +
                 (shift.most == shift.least ? "" : " to " + std::to_string(shift.most)) +
                 " elements too far back: moved, " + counts + " round to their weights";
  if (shift.lost_count != 0) {
    finding.text += "; " + std::to_string(shift.lost_count) + " elements of " +
                    counted(finding.lost.size(), "parameter") + " are in no file";
  }
  return finding;
}

std::string list_of(const std::vector<LostElements>& lost) {
  std::string text;
  for (size_t i = 0; i < std::min(lost.size(), kShownMax); ++i) {
    text += (text.empty() ? "" : ", ") + std::to_string(lost[i].lost_count) + " of " +
            std::to_string(lost[i].element_count) + " of " + ckpt::escaped(lost[i].param);
  }
  return text + (lost.size() > kShownMax ? ", ..." : "");
}

void require_mendable(const RepairFinding& finding, const RepairOptions& options) {
  if (finding.verdict == Verdict::NotMendable) {
    throw Error(ErrorCode::Corrupt, {}, std::string(name(finding.kind)) + ": " + finding.text,
                "--repair without a kind lists what could be mended");
  }
  if (finding.lost.empty() || options.accept_loss) return;
  uint64_t lost = 0;
  for (const LostElements& one : finding.lost) lost += one.lost_count;
  throw Error(ErrorCode::Corrupt, {},
              std::string(name(finding.kind)) + ": masters and moments of " + std::to_string(lost) +
                  " elements are in no file: " + list_of(finding.lost),
              "--accept-loss takes these masters from the weights and sets these moments to 0");
}

// Whatever is written of the state, this is not in it.
void list_losses(const RepairFinding& finding, FiledState& state) {
  for (const LostElements& one : finding.lost) {
    state.not_carried.push_back({std::to_string(one.lost_count) + " elements of " +
                                     state_key(kMasterState, one.param) + " and of its moments",
                                 "in no file: masters are the weights, moments are 0"});
  }
}

RepairFinding mend_shift(RepairedState& repaired, const OpenedTraining& source,
                         const RepairOptions& options) {
  auto found = find_bucket_shift(repaired.state, source);
  RepairFinding finding = describe(found);
  require_mendable(finding, options);
  if (finding.verdict != Verdict::Mendable) return finding;
  repaired.state = std::move(found->shifted.state);
  if (!finding.lost.empty()) repaired.payloads = found->payloads;
  list_losses(finding, repaired.state);
  return finding;
}

RepairFinding mend_group_order(FiledState& state) {
  RepairFinding finding = find_group_order(state);
  for (const SwappedGroups& groups : find_swapped_groups(state)) swap_back(groups, state);
  return finding;
}

void refuse_swapped_groups(const FiledState& state) {
  const auto swapped = find_swapped_groups(state);
  if (swapped.empty()) return;
  throw Error(ErrorCode::Corrupt,
              {.file = {},
               .key = "optimizer." + std::to_string(swapped[0].optimizer) + "/param_groups/" +
                      std::to_string(swapped[0].without_decay) + "/weight_decay"},
              kSwappedGroups, "--repair group-order gives each group its own");
}

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

constexpr std::string_view kDecay = "weight_decay", kMultiplier = "wd_mult";

bool differ_in_decay_alone(const Value& a, const Value& b) {
  for (const std::string_view key : {"lr_mult", "is_expert_parallel", "is_decoupled_lr"}) {
    const auto one = a.find(key), other = b.find(key);
    if (one.has_value() != other.has_value()) return false;
    if (one && ckpt::key_text(*one) != ckpt::key_text(*other)) return false;
  }
  return true;
}

// Whether the first must not decay weights and does, and the second must and does not.
bool are_swapped(const Value& without, const Value& with) {
  const auto decay = number_in(without, kDecay), other_decay = number_in(with, kDecay);
  const auto multiplier = number_in(without, kMultiplier), other = number_in(with, kMultiplier);
  return decay && other_decay && multiplier && other && *multiplier == 0 && *other != 0 &&
         *decay != 0 && *other_decay == 0 && differ_in_decay_alone(without, with);
}

}  // namespace

RepairFinding find_shift(const FiledState& state, const OpenedTraining& source) {
  return describe(find_bucket_shift(state, source));
}

RepairFinding find_group_order(const FiledState& state) {
  const auto swapped = find_swapped_groups(state);
  RepairFinding finding{.kind = RepairKind::GroupOrder,
                        .text = "every group has its own weight decay"};
  if (swapped.empty()) return finding;
  finding.verdict = Verdict::Mendable;
  finding.compared_count = finding.right_count = swapped.size();
  finding.text = counted(swapped.size(), "pair") +
                 " of groups have each other's weight_decay; wd_mult says what each has to have";
  return finding;
}

RepairedState repair_state(FiledState state, const OpenedTraining& source,
                           const RepairOptions& options) {
  RepairedState repaired{std::move(state), nullptr, {}};
  if (options.wants(RepairKind::BucketShift)) {
    repaired.repairs.push_back(mend_shift(repaired, source, options));
  }
  if (options.wants(RepairKind::GroupOrder)) {
    repaired.repairs.push_back(mend_group_order(repaired.state));
  } else {
    refuse_swapped_groups(repaired.state);
  }
  return repaired;
}

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

// What could be mended in a checkpoint, and how sure that is.
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

std::vector<SwappedGroups> find_swapped_groups(const TrainingState& state) {
  std::vector<SwappedGroups> swapped;
  for (uint32_t optimizer = 0; optimizer < state.chain.size(); ++optimizer) {
    const std::vector<ckpt::NodeId>& groups = state.chain[optimizer].groups;
    const auto value = [&](size_t i) { return state.common.tree.value(groups[i]); };
    std::vector<bool> is_paired(groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      for (size_t j = 0; j < groups.size(); ++j) {
        if (is_paired[i] || is_paired[j] || !are_swapped(value(i), value(j))) continue;
        is_paired[i] = is_paired[j] = true;
        swapped.push_back({optimizer, i, j});
      }
    }
  }
  return swapped;
}

void swap_back(const SwappedGroups& groups, TrainingState& state) {
  ckpt::ValueTree& tree = state.common.tree;
  const std::vector<ckpt::NodeId>& nodes = state.chain[groups.optimizer].groups;
  const ckpt::NodeId without = nodes[groups.without_decay], with = nodes[groups.with_decay];
  const ckpt::NodeId decay = tree.value(without).find(kDecay)->id();
  const ckpt::NodeId none = tree.value(with).find(kDecay)->id();
  tree.put(without, kDecay, none);
  tree.put(with, kDecay, decay);
}

}  // namespace optim
