#include <algorithm>
#include <set>
#include <span>

#include <ckpt/tensor_stream.h>

#include "args/common_state.h"
#include "grid/target_groups.h"
#include "grid/whole_states.h"
#include "issues/issue.h"
#include "model/tensor_names.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

ckpt::Where below(ckpt::Where where, const std::string& place) {
  where.key += place;
  return where;
}

// Those of one optimizer are compared with each other elsewhere.
void compare_steps(const FiledState& state, const ckpt::Where& common, VerifyReport& report) {
  std::optional<double> first;
  for (uint32_t i = 0; i < state.chain.size(); ++i) {
    const auto step = step_of(state, i);
    if (!first) {
      first = step;
    } else if (step && *step != *first) {
      report.find(below(common, "/optimizer/" + std::to_string(i) + "/optimizer/param_groups/0"),
                  "has a different step count from the optimizers before it",
                  "the state may come from different iterations");
    }
  }
}

// Stage 0, whose list is stored, meets an embedding first and the others a norm: there the groups
// stand the other way round, and are taken by their place.
void note_group_order(const FiledState& state, const ckpt::Where& common, VerifyReport& report) {
  if (state.grid.sizes.pipeline_parallel < 2) return;
  for (const ChainedOptimizerState& optimizer : state.chain) {
    std::set<double> decays;
    for (const NodeId group : optimizer.groups) {
      decays.insert(number_in(state.common.tree.value(group), "weight_decay").value_or(0));
    }
    if (decays.size() < 2) continue;
    return report.find(
        below(common, "/optimizer"),
        "Megatron-Core up to 0.15 loads these groups by their place, which is another one "
        "on pipeline stages above 0: behind a restart these decay norms and biases "
        "instead of weights",
        "groups are matched here by wd_mult, lr_mult, is_expert_parallel and "
        "is_decoupled_lr",
        ckpt::Severity::Note);
  }
}

// Those with parameters.
std::set<uint32_t> groups_of(const FiledState& state, uint32_t optimizer) {
  std::set<uint32_t> groups;
  for (const TrainedParam& param : state.params) {
    if (param.info.requires_grad && param.optimizer == optimizer) groups.insert(param.group);
  }
  return groups;
}

constexpr size_t kPieceBytes = size_t{1} << 16;

// Reads until the first that is not 0. What cannot be read is told elsewhere.
bool has_value(const TensorEntry& tensor, const OpenedTraining& source) try {
  std::vector<std::byte> buffer(kPieceBytes);
  ckpt::TensorStream stream(tensor, source);
  while (stream.left_bytes() > 0) {
    const auto piece =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), stream.left_bytes()));
    stream.read(piece);
    if (std::ranges::any_of(piece, [](std::byte byte) { return byte != std::byte{0}; }))
      return true;
  }
  return false;
} catch (const Error& error) {
  if (error.code() == ErrorCode::IoFailure) throw;
  return true;
}

// Megatron files moments of 0 before the first step, which a run in fp16 may skip for a while.
bool has_averages(const FiledState& state, uint32_t optimizer, const OpenedTraining& source) {
  return std::ranges::any_of(state.params, [&](const TrainedParam& param) {
    return param.optimizer == optimizer &&
           std::ranges::any_of(param.states, [&](const StateTensor& kept) {
             return is_moment_name(kept.name) && has_value(*kept.value, source);
           });
  });
}

void check_step_counts(const FiledState& state, const OpenedTraining& source,
                       VerifyReport& report) {
  for (const uint32_t optimizer : find_uncounted(state)) {
    const std::string name = "optimizer " + std::to_string(optimizer);
    if (!has_averages(state, optimizer, source)) {
      report.not_proven.push_back(
          {"the step count of " + name, "there is none, and all of its moments are 0"});
      continue;
    }
    report.find({.file = {}, .key = "optimizer." + std::to_string(optimizer) + "/step"},
                "no group and no parameter has a step count, and the optimizer has moments",
                kUncounted);
  }
}

// The steps that groups state: where one does, all do, and none contradicts what parameters count.
void check_group_steps(const FiledState& state, uint32_t optimizer, VerifyReport& report) {
  const ChainedOptimizerState& of = state.chain[optimizer];
  const auto counted = step_of(state, optimizer);
  for (const uint32_t group : groups_of(state, optimizer)) {
    if (group >= of.groups.size()) continue;
    const Value settings = state.common.tree.value(of.groups[group]);
    const auto step = number_in(settings, "step");
    const bool must_have = of.step_layout == StepLayout::PerGroup || settings.find("step");
    if (!must_have || (step && (of.step_layout == StepLayout::PerGroup || step == counted)))
      continue;
    report.find({.file = {},
                 .key = "optimizer." + std::to_string(optimizer) + "/param_groups/" +
                        std::to_string(group) + "/step"},
                !settings.find("step")
                    ? "is missing, although another group of the optimizer has it"
                : !step ? "is not a number"
                        : "is not the step count of the group's parameters");
  }
}

}  // namespace

void check_distributed_optimizers(const FiledState& state, const OpenedTraining& checkpoint,
                                  VerifyReport& report) {
  for (const Issue* const issue : known_issues()) {
    if (issue->report_settings != nullptr) issue->report_settings(state, report);
  }
  check_step_counts(state, checkpoint, report);
  for (uint32_t i = 0; i < state.chain.size(); ++i) {
    const Filing* const filing = state.filed.optimizers[i];
    if (filing->by_elements && filing != &kRanges) check_group_steps(state, i, report);
  }
  if (!state.filed.is_zero1() || state.filed.container != ckpt::Format::TorchDist) return;
  const CommonState* const common = checkpoint.common_state();
  ckpt::Where where;
  if (common != nullptr) where = {checkpoint.shown_name(common->file), std::nullopt, common->key};
  compare_steps(state, where, report);
  // As since 0.14.
  const bool is_described =
      common != nullptr && common->document->tree.root().find("content_metadata");
  if (state.filed.only() == &kRanges && !is_described) note_group_order(state, where, report);
}

}  // namespace optim
