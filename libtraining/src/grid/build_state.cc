#include "grid/build_state.h"

#include <algorithm>
#include <utility>

#include <optim/checkpoint_args.h>
#include <optim/rule_table.h>

#include "args/run_args.h"
#include "grid/placement.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {}  // namespace

std::string state_key(std::string_view state, std::string_view name) {
  std::string key;
  key.reserve(kStatePrefix.size() + state.size() + 1 + name.size());
  return key.append(kStatePrefix).append(state).append(1, '.').append(name);
}

std::string rank_item_name(uint32_t optimizer, bool is_inner, std::string_view key) {
  return "optimizer." + std::to_string(optimizer) + (is_inner ? "/optimizer/" : "/") +
         std::string(key);
}

bool is_state_dtype(DType dtype) {
  switch (dtype) {
    case DType::Float32:
    case DType::Float64:
    case DType::Float16:
    case DType::BFloat16:
    case DType::Float8E4M3FN:
    case DType::Float8E4M3FNUZ:
    case DType::Float8E5M2:
    case DType::Float8E5M2FNUZ: return true;
    default: return false;
  }
}

bool is_master_dtype(DType dtype) { return dtype == DType::Float32 || dtype == DType::Int16; }

std::optional<Extents> shape_of_state(std::string_view state, const Extents& of_param) {
  if (state == "moment2_buffer") return std::nullopt;
  const bool is_left = state == "L" || state == "Q_L", is_right = state == "R" || state == "Q_R";
  if ((!is_left && !is_right) || of_param.size() != 2) return of_param;
  const uint64_t size = of_param[is_left ? 0 : 1];
  return Extents{size, size};
}

KeyRules key_rules(const TrainingState& state) {
  return {state.facts.layer_norm_renamed,
          state.grid.pipeline.num_layers,
          state.facts.layers_stacked,
          state.facts.expert_count,
          state.facts.experts_grouped,
          &rules_of(state),
          state.facts.stacks};
}

TensorRef with_key(TensorEntry tensor, std::string key) {
  tensor.file.clear();
  tensor.key = std::move(key);
  return std::make_shared<const TensorEntry>(std::move(tensor));
}

TrainedParam make_param(TensorRef weight) {
  TrainedParam param;
  param.info.attributes = megatron_attributes(weight->key, weight->shape.size());
  param.info.name = weight->key;
  param.info.shape.assign(weight->shape.begin(), weight->shape.end());
  param.info.dtype = weight->dtype;
  param.weight = std::move(weight);
  return param;
}

bool is_model_buffer(std::string_view name) {
  const auto found = ModelRules::built_in().find(name);
  return found && found->rule->buffer;
}

// What no rule of names knows belongs to the optimizer whose states it has: Muon keeps momentum.
static void take_optimizer_from_states(const TrainedParam& param, const RuleDescription* matrices,
                                       ParamInfo& info) {
  if (param.states.empty()) return;
  const auto has = [&](const StateSpec& state) {
    return std::ranges::find(param.states, state.name, &StateTensor::name) != param.states.end();
  };
  info.attributes.use_muon =
      matrices != nullptr && matrices->is_emerging &&
      std::ranges::all_of(matrices->states(matrices->defaults(), info.shape), has);
  if (!info.attributes.use_muon || info.shape.size() == 2) return;
  info.shape.resize(2, 1);  // stacked over something that is not known
}

// Megatron's Lion leaves them to Adam since core 0.18-dev (0.17 gives Lion all; not tried).
static ConfigOverrides overrides_beside_lion(const OptimizerConfig& config) {
  ConfigOverrides overrides = get_standard_config_overrides(config);
  const ParamPredicate left_to_adam = {"nonlinear_or_embedding", [](const ParamInfo& param) {
                                         return param.attributes.is_embedding_or_output_parameter ||
                                                param.shape.size() != 2;
                                       }};
  set_override(overrides, {.predicate = {left_to_adam}}, {{"optimizer", "adam"}});
  return overrides;
}

bool is_since_core_019(const Value& args) {
  return args.find("expert_gtp_weight_remat_size").has_value();
}

bool are_experts_apart(const Value& args, const ParallelSizes& sizes) {
  const bool is_cut_otherwise = sizes.expert_tensor_parallel != sizes.tensor_parallel;
  return sizes.expert_parallel > 1 || (is_cut_otherwise && is_since_core_019(args));
}

std::vector<ParamGroup> groups_of(const Value& args, const ParallelSizes& sizes,
                                  const std::vector<TrainedParam>& params) {
  const ModelRules& table = ModelRules::built_in();
  const OptimizerConfig config = config_from_args(args);
  const RuleDescription* const rule = find_rule(config.optimizer);
  const bool is_emerging = rule != nullptr && rule->is_emerging;
  if (is_true(args, "use_mup") && !is_emerging) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args/use_mup"},
                "the groups that muP makes of parameters are not known",
                "--model-only carries the weights");
  }
  const bool are_apart = are_experts_apart(args, sizes);
  std::vector<ParamInfo> infos;
  infos.reserve(params.size());
  for (const TrainedParam& param : params) {
    infos.push_back(param.info);
    const bool is_expert = expert_in(param.info.name).has_value();
    infos.back().attributes.allreduce = !is_expert || !are_apart;
    if (table.find(param.info.name)) continue;
    take_optimizer_from_states(param, rule, infos.back());
  }
  if (config.optimizer != LionRule::kName) return get_param_groups(std::move(infos), config);
  return get_param_groups(infos, config, overrides_beside_lion(config));
}

std::vector<ParamGroup> groups_in_brief(const TrainingState& state) {
  std::set<std::pair<uint32_t, uint32_t>> seen;
  std::vector<TrainedParam> first;
  for (const TrainedParam& param : state.params) {
    if (!param.info.requires_grad) continue;
    if (seen.emplace(param.optimizer, param.group).second) first.push_back(param);
  }
  return groups_of(state.args(), state.grid.sizes, first);
}

std::vector<ParamGroup> group_params(const Value& args, const ParallelSizes& sizes,
                                     std::vector<TrainedParam>& params) {
  std::vector<ParamGroup> groups = groups_of(args, sizes, params);
  uint32_t group = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    group = i > 0 && groups[i].optimizer_index == groups[i - 1].optimizer_index ? group + 1 : 0;
    for (const GroupedParam& grouped : groups[i].params) {
      params[grouped.index].optimizer = groups[i].optimizer_index;
      params[grouped.index].group = group;
    }
  }
  return groups;
}

std::optional<std::string_view> missing_moment(const TrainedParam& param) {
  for (const std::string_view moment : {"exp_avg", "exp_avg_sq"}) {
    const auto found = std::ranges::find(param.states, moment, &StateTensor::name);
    if (found == param.states.end()) return moment;
  }
  return std::nullopt;
}

Document CommonBuilder::finish() { return builder_.finish_document(root_); }

void finish_state(FiledState& state, CommonBuilder& common, const ckpt::Checkpoint& source) {
  state.common = common.finish();
  for (ChainedOptimizerState& optimizer : state.chain) {
    if (optimizer.step_layout != StepLayout::None) continue;
    const bool in_group = std::ranges::any_of(optimizer.groups, [&](NodeId group) {
      return state.common.tree.value(group).find("step").has_value();
    });
    if (in_group) optimizer.step_layout = StepLayout::PerGroup;
  }
  state.filed.container = source.catalog().format;
  state.folder_name = source.folder().filename().string();
}

}  // namespace optim
