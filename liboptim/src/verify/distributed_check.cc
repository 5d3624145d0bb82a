#include "verify/distributed_check.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "args/common_state.h"
#include "grid/stated_groups.h"
#include "grid/target_form.h"
#include "repair/group_order.h"
#include "verify/step_number.h"

namespace optim {
namespace {

using ckpt::Value;

class DistributedCheck {
 public:
  DistributedCheck(const TrainingState& view, const ckpt::Checkpoint& checkpoint,
                   VerifyReport& report)
      : view_(view), report_(report) {
    const auto common = read_common_state(checkpoint);
    if (!common) return;
    file_ = checkpoint.shown_name(common->file);
    key_ = common->key;
    content_is_described_ = common->document->tree.root().find("content_metadata").has_value();
  }

  void run() {
    check_steps();
    if (view_.sharding == OptimizerSharding::FlattenedRange && !content_is_described_) {
      note_group_order();
    }
  }

 private:
  // Those of one optimizer are compared with each other elsewhere.
  void check_steps() {
    std::optional<double> first;
    for (size_t i = 0; i < view_.chain.size(); ++i) {
      const auto step = step_of(view_, static_cast<uint32_t>(i));
      if (!first || !step || *step == *first) {
        if (!first) first = step;
        continue;
      }
      find(ckpt::Severity::Damage, "/optimizer/" + std::to_string(i) + "/optimizer/param_groups/0",
           "has a different step count from the optimizers before it",
           "the state may come from different iterations");
    }
  }

  // Stage 0, whose list is stored, meets an embedding first and the others a norm: there the groups
  // stand the other way round, and are taken by their place.
  void note_group_order() {
    if (view_.grid.sizes.pipeline_parallel < 2) return;
    for (const ChainedOptimizerState& optimizer : view_.chain) {
      std::set<double> decays;
      for (const ckpt::NodeId group : optimizer.groups) {
        decays.insert(number_in(view_.common.tree.value(group), "weight_decay").value_or(0));
      }
      if (decays.size() < 2) continue;
      return find(
          ckpt::Severity::Note, "/optimizer",
          "Megatron-Core up to 0.12 loads these groups by their place, which is another one "
          "on pipeline stages above 0: behind a restart these decay norms and biases "
          "instead of weights",
          "groups are matched here by wd_mult, lr_mult, is_expert_parallel and "
          "is_decoupled_lr");
    }
  }

  void find(ckpt::Severity severity, const std::string& place, std::string problem,
            std::string hint) {
    report_.findings.findings.push_back({ckpt::CheckKind::Meaning,
                                         severity,
                                         {file_, std::nullopt, key_ + place},
                                         std::move(problem),
                                         std::move(hint)});
  }

  const TrainingState& view_;
  VerifyReport& report_;
  std::string file_, key_;
  bool content_is_described_ = false;  // as since 0.14
};

// A parameter's group, and whether moments average over steps.
struct Grouped {
  std::set<uint32_t> groups;  // with parameters
  bool has_moments = false;
};
Grouped groups_of(const TrainingState& view, uint32_t optimizer) {
  Grouped found;
  for (const TrainedParam& param : view.params) {
    if (!param.info.requires_grad || param.optimizer != optimizer) continue;
    found.groups.insert(param.group);
    found.has_moments |=
        std::ranges::find(param.states, "exp_avg", &StateTensor::name) != param.states.end();
  }
  return found;
}

// The steps that groups state: where one does, all do, and none contradicts what parameters count.
void check_group_steps(const TrainingState& view, uint32_t optimizer, VerifyReport& report) {
  const ChainedOptimizerState& of = view.chain[optimizer];
  const Grouped grouped = groups_of(view, optimizer);
  const std::string name = "optimizer " + std::to_string(optimizer);
  if (of.step_layout == StepLayout::None && grouped.has_moments) {
    report.not_proven.push_back({"the step count of " + name,
                                 "there is none, and Adam's first steps differ from later ones"});
    return;
  }
  const auto counted = step_of(view, optimizer);
  for (const uint32_t group : grouped.groups) {
    if (group >= of.groups.size()) continue;
    const Value settings = view.common.tree.value(of.groups[group]);
    const auto step = number_in(settings, "step");
    const bool must_have = of.step_layout == StepLayout::PerGroup || settings.find("step");
    if (!must_have || (step && (of.step_layout == StepLayout::PerGroup || step == counted)))
      continue;
    report.findings.findings.push_back(
        {ckpt::CheckKind::Meaning,
         ckpt::Severity::Damage,
         {.file = {},
          .key = "optimizer." + std::to_string(optimizer) + "/param_groups/" +
                 std::to_string(group) + "/step"},
         !settings.find("step") ? "is missing, although another group of the optimizer has it"
         : !step                ? "is not a number"
                                : "is not the step count of the group's parameters"});
  }
}

// Of every kind of optimizer: what is left of a load that took groups by their place.
void check_group_order(const TrainingState& view, VerifyReport& report) {
  for (const SwappedGroups& groups : find_swapped_groups(view)) {
    report.findings.findings.push_back(
        {ckpt::CheckKind::Meaning,
         ckpt::Severity::Damage,
         {.file = {},
          .key = "optimizer." + std::to_string(groups.optimizer) + "/param_groups/" +
                 std::to_string(groups.without_decay) + "/weight_decay"},
         kSwappedGroups,
         "Megatron-Core up to 0.12 loads groups by their place, which is another one on pipeline "
         "stages above 0; ckpt-convert --repair group-order gives each its own"});
  }
}

}  // namespace

bool is_in_flat_buffers(const TrainingState& view) { return is_zero1(view.sharding); }

std::optional<double> step_of(const TrainingState& view, uint32_t optimizer) {
  const ChainedOptimizerState& of = view.chain.at(optimizer);
  if (of.step_layout == StepLayout::PerParamNumber) return static_cast<double>(of.step_number);
  if (of.step_layout == StepLayout::PerParam) return step_number(of.step_dtype, of.step_bytes);
  for (const ckpt::NodeId group : of.groups) {
    if (const auto step = number_in(view.common.tree.value(group), "step")) return step;
  }
  return std::nullopt;
}

void check_distributed_optimizers(const TrainingState& view, const ckpt::Checkpoint& checkpoint,
                                  VerifyReport& report) {
  check_group_order(view, report);
  for (uint32_t i = 0; i < view.chain.size(); ++i) {
    if (view.chain[i].is_distributed) check_group_steps(view, i, report);
  }
  if (!is_in_flat_buffers(view) || view.format != ckpt::Format::TorchDist) return;
  DistributedCheck(view, checkpoint, report).run();
}

}  // namespace optim
