#include "explain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <optim/rule_table.h>

#include "restored_optimizer.h"
#include "shared_rows.h"
#include "step/loops/grad_stats_kernels.h"

namespace optim {
namespace {

struct SharedSpread {
  double cosine = 0;
  size_t count = 0;
  std::array<Spread::Row, 40> ulps = {};
};

// The spread of a tensor, which its owner knows, on all processes.
Spread shared_spread(const std::optional<Spread>& own, Collectives& collectives) {
  SharedRows<SharedSpread> shared(1);
  if (own) {
    SharedSpread row{own->cosine, own->ulps.size()};
    std::ranges::copy(own->ulps, row.ulps.begin());
    shared.set(0, row);
  }
  shared.share(collectives);
  const auto& [cosine, count, ulps] = shared[0];
  return {{ulps.data(), ulps.data() + count}, cosine};
}

// A count of updates is a number, of which there is one.
Spread spread_of_item(const StateItem& item, const StateTensors& tensors,
                      const Expected& expected) {
  if (item.kind == "step") return {{{std::numeric_limits<uint64_t>::max(), 1}}, 1};
  const at::Tensor ours = tensors.tensor(item);
  return spread_of(ours, expected.state.tensor(item.kind, item.name, ours));
}

class Explanation {
 public:
  Explanation(const Expected& expected, const LastStep& last)
      : optimizer_(last.optimizer), expected_(expected), last_(last) {}

  // Of each parameter, by id.
  std::vector<std::pair<std::string, PartFinding>> find(Collectives& collectives) const {
    const std::vector<Param>& params = optimizer_.all_params();
    SharedRows<PartFinding> rows(params.size());
    for (const OptimizedParam* const param : optimizer_.get_parameters()) {
      rows.set(param->id, find_of(*param));
    }
    rows.share(collectives);
    std::vector<std::pair<std::string, PartFinding>> findings;
    for (size_t id = 0; id < params.size(); ++id) {
      findings.emplace_back(params[id].info.name, rows[id]);
    }
    return findings;
  }

  // The first tensor, in model order, with NaN or infinity: comparisons and fits tell nothing of
  // what comes of it. Empty: there is none.
  std::string find_not_finite(Collectives& collectives) const {
    const std::vector<Param>& params = optimizer_.all_params();
    SharedRows<size_t> places(params.size());
    for (const OptimizedParam* const param : optimizer_.get_parameters()) {
      places.set(param->id, not_finite_of(*param));
    }
    places.share(collectives);
    size_t id = 0;
    while (id < params.size() && places[id] == 0) ++id;
    if (id == params.size()) return {};
    const size_t place = places[id] - 1;
    return kinds_of(id).at(place / 2) + " of '" + params[id].info.name +
           "' holds NaN or infinity " +
           (place % 2 == 0 ? "before the step" : "in what is expected") +
           ": no part of the step can be told from it";
  }

 private:
  // What a parameter has, the master last.
  std::vector<std::string> kinds_of(size_t id) const {
    const OptimizerGroup& group = *optimizer_.param_groups()[optimizer_.ownership().group_of[id]];
    const ParamInfo& info = optimizer_.all_params()[id].info;
    std::vector<std::string> kinds;
    for (const StateSpec& state : states_of(group.rule_config, info.shape)) {
      kinds.emplace_back(state.name);
    }
    kinds.emplace_back("fp32_param");
    return kinds;
  }

  static bool is_finite(const at::Tensor& tensor) {
    return std::isfinite(sum_of_squares(tensor.contiguous()));
  }

  // 0: none; else one more than twice the place in kinds_of(), and 1 for what is expected.
  size_t not_finite_of(const OptimizedParam& param) const {
    const ParamInfo& info = param.model.info;
    const SavedParam before = saved(info);
    const std::vector<std::string> kinds = kinds_of(static_cast<size_t>(param.id));
    for (size_t i = 0; i < kinds.size(); ++i) {
      const bool is_master = i + 1 == kinds.size();
      const auto own = before.state.find(kinds[i]);
      if (!is_master && own == before.state.end()) continue;
      const at::Tensor& start = is_master ? before.master : own->second;
      if (!is_finite(start)) return 1 + 2 * i;
      const std::string kind = is_master && !has_master(param) ? "model" : kinds[i];
      const at::Tensor& like = is_master ? before.master : start;
      if (!is_finite(expected_.state.tensor(kind, info.name, like).to(at::kFloat))) {
        return 2 + 2 * i;
      }
    }
    return 0;
  }

  SavedParam saved(const ParamInfo& info) const {
    const Gradients* const init = expected_.options.from_init ? &last_.gradients : nullptr;
    return load_saved(last_.source, init, info);
  }

  PartFinding find_of(const OptimizedParam& param) const {
    const ParamInfo& info = param.model.info;
    const uint32_t group = optimizer_.ownership().group_of[param.id];
    SavedParam before = saved(info);
    const StepInputs inputs{.info = info,
                            .group = *optimizer_.param_groups()[group],
                            .lr = last_.rates[group].lr,
                            .weight_decay = last_.rates[group].weight_decay,
                            .param = std::move(before.master),
                            .grad = grad_of(info),
                            .state = std::move(before.state),
                            .step = before.step,
                            .grad_scale = last_.factor};
    return find_part(inputs, recorded(param, inputs));
  }

  at::Tensor grad_of(const ParamInfo& info) const {
    const at::Tensor grad = optim::grad_of(last_.source, last_.gradients, 0, info);
    return unscaled(grad, last_.inverse_scale).to(at::kFloat);
  }

  StepRecord recorded(const OptimizedParam& param, const StepInputs& inputs) const {
    const std::string& name = inputs.info.name;
    StepRecord record;
    const bool has_own_master = has_master(param);
    record.param =
        expected_.state.tensor(has_own_master ? "fp32_param" : "model", name, inputs.param);
    if (has_own_master) {
      record.weight = expected_.state.tensor("model", name, param.model.param);
    }
    for (const auto& [state, ours] : param.state) {
      record.state[state] = expected_.state.tensor(state, name, ours);
    }
    return record;
  }

  LayerWiseDistributedOptimizer& optimizer_;
  const Expected& expected_;
  const LastStep& last_;
};

// What is rounding alone counts only where nothing else is found.
bool leave_out_rounding(std::vector<std::pair<std::string, PartFinding>>& findings) {
  const bool is_rounding = std::ranges::all_of(
      findings, [](const auto& named) { return !named.second.part || named.second.is_rounding; });
  for (auto& [name, finding] : findings) {
    if (!is_rounding && finding.is_rounding) finding.part.reset();
  }
  return is_rounding;
}

}  // namespace

Divergence explain(const Comparison& comparison, const Expected& expected, const LastStep& last,
                   Collectives& collectives) {
  const StateItem& item = *comparison.first;
  Divergence found;
  found.kind = item.kind;
  found.tensor = item.name;
  found.difference = comparison.difference;
  const StateTensors tensors(last.optimizer);
  std::optional<Spread> own;
  if (tensors.owns(item)) own = spread_of_item(item, tensors, expected);
  found.spread = shared_spread(own, collectives);
  if (expected.options.steps != 1) {
    found.why_no_parts =
        "of several steps no part can be named; --steps 1 and a checkpoint one step later name it";
    return found;
  }
  if (last.was_skipped) {
    found.why_no_parts = "the step was skipped, since gradients overflow";
    return found;
  }
  const Explanation explanation(expected, last);
  found.why_no_parts = explanation.find_not_finite(collectives);
  if (!found.why_no_parts.empty()) return found;
  auto findings = explanation.find(collectives);
  found.is_rounding = leave_out_rounding(findings);
  found.parts = summarize(findings, {.max_norm = last.optimizer.config().clip_grad,
                                     .norm = last.norm,
                                     .is_norm_recorded = expected.options.recorded_grad_norm});
  const auto first =
      std::ranges::find_if(found.parts, [](const PartOfStep& part) { return part.tensors > 0; });
  if (first != found.parts.end()) found.first = first->part;
  return found;
}

}  // namespace optim
