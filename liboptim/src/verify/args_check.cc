#include "verify/args_check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string_view>
#include <tuple>

#include "args/run_grid.h"
#include "grid/glu_rows.h"
#include "model/model_rules.h"
#include "model/stage_names.h"

namespace optim {
namespace {

std::optional<uint64_t> arg(const TrainingState& state, std::string_view name) {
  const auto value = state.args().find(name);
  const bool is_size = value && value->is(ckpt::Kind::Int) && value->as_int() > 0;
  return is_size ? std::optional(static_cast<uint64_t>(value->as_int())) : std::nullopt;
}

ContradictedArg contradiction(std::string_view name, uint64_t stated, std::string_view but) {
  return {std::string(name), "is " + std::to_string(stated) + ", but " + std::string(but)};
}

std::optional<ContradictedArg> of_embedding(const TrainingState& state) {
  const auto found = std::ranges::find_if(state.params, [](const TrainedParam& param) {
    return param.info.name == kWordEmbeddings && param.weight && param.weight->shape.size() == 2;
  });
  if (found == state.params.end()) return std::nullopt;
  const ckpt::Extents& shape = found->weight->shape;
  for (const auto& [name, axis, what] :
       {std::tuple("padded_vocab_size", 0, " rows"), std::tuple("hidden_size", 1, " columns")}) {
    const auto stated = arg(state, name);
    const uint64_t has = shape[static_cast<size_t>(axis)];
    if (!stated || *stated == has) continue;
    return contradiction(name, *stated,
                         std::string(kWordEmbeddings) + " has " + std::to_string(has) + what);
  }
  return std::nullopt;
}

// Which axis of a layer's matrix is as wide as the model.
struct ModelWidth {
  std::string_view name;  // a rule's
  size_t axis;
};

constexpr std::array kModelWidths = {
    ModelWidth{"self_attention.linear_proj.weight", 0},
    ModelWidth{"self_attention.linear_qkv.weight", 1},
    ModelWidth{"self_attention.linear_q_proj.weight", 1},
    ModelWidth{"self_attention.linear_q_down_proj.weight", 1},
    ModelWidth{"self_attention.linear_kv_down_proj.weight", 1},
    ModelWidth{"mlp.linear_fc1.weight", 1},
    ModelWidth{"mlp.linear_fc2.weight", 0},
    ModelWidth{"mlp.router.weight", 1},
    ModelWidth{"mlp.shared_experts.linear_fc1.weight", 1},
    ModelWidth{"mlp.shared_experts.linear_fc2.weight", 0},
};

// Tensor-parallel parts that were put together along the wrong axis are as wide as their number.
std::optional<ContradictedArg> of_matrices(const TrainingState& state) {
  const auto stated = arg(state, "hidden_size");
  if (!stated) return std::nullopt;
  for (const TrainedParam& param : state.params) {
    const auto in_layer = split_layer(param.info.name);
    if (!in_layer || !param.weight || param.weight->shape.size() != 2) continue;
    const auto width = std::ranges::find(kModelWidths, in_layer->rest, &ModelWidth::name);
    if (width == kModelWidths.end()) continue;
    const uint64_t has = param.weight->shape[width->axis];
    if (has == *stated) continue;
    return contradiction("hidden_size", *stated,
                         param.info.name + " has " + std::to_string(has) +
                             (width->axis == 0 ? " rows" : " columns"));
  }
  return std::nullopt;
}

// Reading goes by the matrices; who takes the arguments at their word builds another model.
std::optional<ContradictedArg> of_gating(const TrainingState& state) {
  const auto stated = stated_gating(state.args());
  if (stated.has_value() == state.facts.gated_linear_unit) return std::nullopt;
  return ContradictedArg{std::string(stated.value_or("swiglu")),
                         stated
                             ? "is True, but linear_fc1 has one row for each column of linear_fc2"
                             : "is not set, but linear_fc1 has two rows for each column of "
                               "linear_fc2, as a gated linear unit"};
}

std::optional<ContradictedArg> of_glu_blocks(const TrainingState& state) {
  const auto found = find_uneven_blocks(state);
  if (!found) return std::nullopt;
  return contradiction(found->argument, found->block, found->problem);
}

std::optional<ContradictedArg> of_layers(const TrainingState& state) {
  std::optional<uint32_t> last;
  for (const TrainedParam& param : state.params) {
    if (const auto layer = decoder_layer_in(param.info.name))
      last = std::max(last.value_or(0), layer->number);
  }
  const uint64_t stated = state.grid.pipeline.num_layers;
  if (!last || stated == 0) return std::nullopt;
  const uint64_t found = uint64_t{*last} + 1;
  // Layers without parameters are left out of a model's names, but hardly the last one.
  if (found == stated || (found < stated && layers_are_described(state))) return std::nullopt;
  return contradiction("num_layers", stated,
                       "the model has " + std::to_string(found) + " decoder layers");
}

std::optional<ContradictedArg> of_experts(const TrainingState& state) {
  std::set<uint32_t> experts;
  for (const TrainedParam& param : state.params) {
    if (const auto expert = expert_in(param.info.name)) experts.insert(expert->number);
  }
  const uint64_t stated = state.facts.expert_count;
  if (experts.empty() || stated == 0 || experts.size() == stated) return std::nullopt;
  return contradiction("num_experts", stated,
                       "the model has " + std::to_string(experts.size()) + " experts");
}

}  // namespace

bool layers_are_described(const TrainingState& state) {
  return std::ranges::any_of(
      std::array{"heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"},
      [&](const char* name) {
        const auto value = state.args().find(name);
        return value && value->is(ckpt::Kind::Str);
      });
}

std::optional<ContradictedArg> contradicted_arg(const TrainingState& state) {
  if (auto of_shape = of_embedding(state)) return of_shape;
  if (auto of_shape = of_matrices(state)) return of_shape;
  if (auto of_units = of_gating(state)) return of_units;
  if (auto of_blocks = of_glu_blocks(state)) return of_blocks;
  return contradicted_count(state);
}

std::optional<ContradictedArg> contradicted_count(const TrainingState& state) {
  if (auto of_names = of_layers(state)) return of_names;
  return of_experts(state);
}

void check_args(const TrainingState& state, VerifyReport& report) {
  const auto found = contradicted_arg(state);
  if (!found) return;
  report.findings.findings.push_back(
      {ckpt::CheckKind::Meaning,
       ckpt::Severity::Damage,
       {.file = {}, .key = "args." + found->name},
       found->problem,
       "the arguments may be those of a different run, or parameters are missing"});
}

}  // namespace optim
