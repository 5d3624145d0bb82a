// Which repairs a training state gets: each kind is found first, and applied where it explains what
// is wrong.
#include "repair/repair_state.h"

#include <algorithm>
#include <map>
#include <optional>

#include <ckpt/error.h>

#include "grid/layer_wise_view.h"
#include "repair/bucket_shift.h"
#include "repair/group_order.h"
#include "state/left_out.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using Verdict = RepairFinding::Verdict;

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

}  // namespace optim
