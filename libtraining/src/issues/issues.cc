// The table of known faults, and who asks it.
#include "issues/issue.h"

#include <algorithm>
#include <optional>

#include <ckpt/error.h>
#include <training/layer_wise_checkpoint.h>

#include "issues/lost_common_state.h"

namespace optim {
namespace {

using Verdict = RepairFinding::Verdict;

constexpr std::array kIssues = {&kGtpRows, &kBucketShift, &kGroupOrder, &kCommonState};

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

RepairFinding find_if_known(const Issue& issue, const FiledState& state,
                            const OpenedTraining& source) {
  try {
    return issue.find(state, source);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    return not_looked_for(issue.kind, error.what());
  }
}

// Of all that show in a state that was read, and then of its common state.
template <class Find>
std::vector<RepairFinding> find_each(const std::optional<std::string>& fault, Find&& find) {
  std::vector<RepairFinding> found;
  for (const Issue* const issue : kIssues) {
    found.push_back(issue->find != nullptr ? find(*issue) : find_common_state(fault));
  }
  return found;
}

}  // namespace

const Issue kCommonState{.kind = RepairKind::CommonState, .name = "common-state"};

std::span<const Issue* const> known_issues() { return kIssues; }

RepairedState repair_state(FiledState state, const OpenedTraining& source,
                           const RepairOptions& options) {
  RepairedState repaired{std::move(state), nullptr, {}};
  for (const Issue* const issue : kIssues) {
    const bool is_wanted = options.wants(issue->kind);
    if (is_wanted && issue->mend != nullptr) {
      repaired.repairs.push_back(issue->mend(repaired, source, options));
    }
    if (!is_wanted && issue->refuse != nullptr) issue->refuse(repaired.state);
  }
  return repaired;
}

std::string_view name(RepairKind kind) {
  return (*std::ranges::find(kIssues, kind, [](const Issue* issue) { return issue->kind; }))->name;
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
    return find_each(fault, [](const Issue& issue) {
      return not_looked_for(issue.kind, "the common state cannot be used");
    });
  }
  ckpt::OpenOptions opening{.iteration = options.iteration, .limits = options.limits};
  if (is_replaced) opening.source = with_common_of(options.like, options.limits);
  const OpenedTraining opened = open_checkpoint(checkpoint, std::move(opening));
  const FiledState state = read_training_state(opened);
  return find_each(fault, [&](const Issue& issue) { return find_if_known(issue, state, opened); });
}

}  // namespace optim
