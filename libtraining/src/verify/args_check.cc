#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <training/layer_wise_checkpoint.h>
#include <training/size_change.h>

#include "args/run_args.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "issues/gtp_rows.h"
#include "model/model_rules.h"
#include "model/tensor_names.h"
#include "state/not_checked.h"
#include "verify/checks.h"
#include "verify/model_args.h"

namespace optim {
namespace {

using Decides = ContradictedArg::Decides;

const ckpt::Extents* matrix(const FiledState& state, std::string_view name) {
  const auto found = std::ranges::find_if(state.params, [&](const TrainedParam& param) {
    return param.info.name == name && param.weight && param.weight->shape.size() == 2;
  });
  return found != state.params.end() ? &found->weight->shape : nullptr;
}

constexpr std::string_view kPositionEmbeddings = "embedding.position_embeddings.weight";

struct EmbeddingSize {
  std::string_view arg, tensor;
  size_t axis;
};
constexpr std::array kEmbeddingSizes = {
    EmbeddingSize{"padded_vocab_size", kWordEmbeddings, 0},
    EmbeddingSize{"hidden_size", kWordEmbeddings, 1},
    EmbeddingSize{"max_position_embeddings", kPositionEmbeddings, 0},
};

std::optional<ContradictedArg> of_embedding(const EmbeddingSize& row, const FiledState& state,
                                            const StatedArgs& args) {
  const ckpt::Extents* const shape = matrix(state, row.tensor);
  const auto stated = args.size(row.arg);
  if (shape == nullptr || !stated || *stated == (*shape)[row.axis]) return std::nullopt;
  return contradicted(row.arg, args.text(row.arg),
                      has_size(row.tensor, (*shape)[row.axis], row.axis), Decides::Shapes);
}

std::optional<ContradictedArg> of_positions(const FiledState& state, const StatedArgs& args) {
  const auto kind = args.word("position_embedding_type");
  if (!kind || *kind == "learned_absolute" || matrix(state, kPositionEmbeddings) == nullptr) {
    return std::nullopt;
  }
  return contradicted("position_embedding_type", args.text("position_embedding_type"),
                      std::string(kPositionEmbeddings) + " is there", Decides::Modules);
}

std::optional<ContradictedArg> of_vocabulary(const FiledState& state) {
  auto problem = contradicted_vocabulary(state);
  if (!problem) return std::nullopt;
  return ContradictedArg{"vocab_size", std::move(*problem)};  // target_vocabulary() asks, too
}

// torch_dist stores an output layer of its own alone.
std::optional<ContradictedArg> of_output(const FiledState& state) {
  if (!state.facts.output_is_tied || matrix(state, kOutputLayer) == nullptr) return std::nullopt;
  return contradicted("untie_embeddings_and_output_weights", "False",
                      std::string(kOutputLayer) + " is there");
}

// What the names in rank files tell, which a store has without: kinds of layers and of experts.
std::vector<ContradictedArg> of_rank_files(const std::vector<KnownLayer>& layers,
                                           const FiledState& state, const StatedArgs& args) {
  std::vector<ContradictedArg> found;
  if (state.filed.container != ckpt::Format::Torch) return found;
  for (const KnownLayer& layer : layers) {
    const std::string fused = "self_attention.linear_qkv.layer_norm_weight";
    const std::string own = "input_layernorm.weight";
    const std::string& wrong = state.facts.layer_norm_renamed ? fused : own;
    if (layer.has(kLinearQkv) && layer.has(wrong)) {
      found.push_back(contradicted("transformer_impl", args.text("transformer_impl"),
                                   layer.name_of(wrong) + " is there"));
    }
    if (layer.expert == nullptr) continue;
    const bool is_grouped = layer.expert->info.name.find(".local_experts.") == std::string::npos;
    if (is_grouped == state.facts.experts_grouped) continue;
    found.push_back(contradicted("moe_grouped_gemm",
                                 args.text("moe_grouped_gemm") + " with args.transformer_impl " +
                                     args.text("transformer_impl"),
                                 layer.expert->info.name + " is there"));
  }
  return found;
}

// Layers of multi-token prediction; one may stand for several.
std::optional<ContradictedArg> of_mtp(const FiledState& state, const StatedArgs& args) {
  const auto is_stated = args.is_number("mtp_num_layers");
  if (!is_stated || args.is_set("mtp_use_repeated_layer")) return std::nullopt;
  std::set<uint32_t> layers;
  for (const TrainedParam& param : state.params) {
    if (const auto in_mtp = split_mtp_layer(param.info.name)) layers.insert(in_mtp->layer);
  }
  const uint64_t stated = args.size("mtp_num_layers").value_or(0);
  if (stated == layers.size()) return std::nullopt;
  return contradicted(
      "mtp_num_layers", args.text("mtp_num_layers"),
      "the model has " + std::to_string(layers.size()) + " layers of multi-token prediction");
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
std::optional<ContradictedArg> of_matrices(const FiledState& state, const StatedArgs& args) {
  const auto stated = args.size("hidden_size");
  if (!stated) return std::nullopt;
  for (const TrainedParam& param : state.params) {
    const auto in_layer = split_layer(param.info.name);
    if (!in_layer || !param.weight || param.weight->shape.size() != 2) continue;
    const auto width = std::ranges::find(kModelWidths, in_layer->rest, &ModelWidth::name);
    if (width == kModelWidths.end()) continue;
    const uint64_t has = param.weight->shape[width->axis];
    if (has == *stated) continue;
    return contradicted("hidden_size", args.text("hidden_size"),
                        has_size(param.info.name, has, width->axis), Decides::Shapes);
  }
  return std::nullopt;
}

// Reading goes by the matrices; who takes the arguments at their word builds another model.
std::optional<ContradictedArg> of_gating(const FiledState& state) {
  const auto stated = stated_gating(state.args());
  if (stated.has_value() == state.facts.gated_linear_unit) return std::nullopt;
  return ContradictedArg{std::string(stated.value_or("swiglu")),
                         stated
                             ? "is True, but linear_fc1 has one row for each column of linear_fc2"
                             : "is not set, but linear_fc1 has two rows for each column of "
                               "linear_fc2, as a gated linear unit",
                         Decides::Shapes};
}

std::optional<ContradictedArg> of_glu_blocks(const FiledState& state) {
  const auto found = find_uneven_blocks(state);
  if (!found) return std::nullopt;
  return contradicted(found->argument, std::to_string(found->block), std::string(found->problem),
                      Decides::Shapes);
}

std::optional<ContradictedArg> of_layers(const FiledState& state) {
  if (without_submodel(state.facts.divided_stack) != kLayersPrefix) return std::nullopt;
  std::optional<uint32_t> last;
  for (const TrainedParam& param : state.params) {
    if (const auto layer = decoder_layer_in(without_submodel(param.info.name)))
      last = std::max(last.value_or(0), layer->number);
  }
  const uint32_t stated = state.grid.pipeline.num_layers;
  if (!last || stated == 0) return std::nullopt;
  const uint64_t found = uint64_t{*last} + 1;
  // Layers without parameters are left out of a model's names, but hardly the last one.
  if (found == stated || (found < stated && layers_are_described(state))) return std::nullopt;
  const auto named = state.args().find("num_layers");
  const bool is_named = named && named->is(ckpt::Kind::Int) && named->as_int() == int64_t{stated};
  return contradicted(is_named ? "num_layers" : "decoder_num_layers", std::to_string(stated),
                      "the model has " + std::to_string(found) + " decoder layers");
}

// The last argument that an expression names and args have a number for, but for the model's width,
// which other matrices tell.
std::string argument_in(const std::string& expression, const StatedArgs& args) {
  const auto is_of_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::string last;
  for (size_t begin = 0; begin < expression.size(); ++begin) {
    size_t end = begin;
    while (end < expression.size() && is_of_name(expression[end])) ++end;
    const std::string name = expression.substr(begin, end - begin);
    if (name != "hidden_size" && args.size(name)) last = name;
    begin = end;
  }
  return last;
}

ContradictedArg of_segment(const RowSegment& segment, const StatedArgs& args,
                           const std::string& but) {
  const std::string name = argument_in(segment.rows, args);
  return {name,
          "is " + args.text(name) + ", and by args (" + segment.rows + ") " + but +
              ": one of these arguments is wrong",
          Decides::Modules};
}

// Segments of rows, of which a store has each, and rank files the sum.
std::optional<ContradictedArg> of_segments(const FiledState& state, const StatedArgs& args) {
  for (const TrainedParam& param : state.params) {
    const ModelRule* const rule = rules_of(state).find_segmented(param.info.name);
    if (rule == nullptr || !param.weight) continue;
    const std::vector<RowSegment>& segments = rule->segments;
    const bool is_known = std::ranges::all_of(
        segments, [](const RowSegment& segment) { return segment.count.has_value(); });
    if (!is_known || !param.sharing.is_split()) {
      if (!is_known || segments_fit(*rule, param.weight->shape, 1)) continue;
      return of_segment(segments.back(), args,
                        param.info.name + " has rows of " + segments_in_words(*rule) +
                            ", but it has " + std::to_string(param.weight->shape[0]) + " in all");
    }
    const std::vector<uint64_t>& sections = param.sharing.split->sections;
    for (size_t i = 0; i < std::min(sections.size(), segments.size()); ++i) {
      if (*segments[i].count == sections[i]) continue;
      return of_segment(segments[i], args,
                        param.info.name + "." + segments[i].name + " has " +
                            std::to_string(*segments[i].count) + " rows, but it has " +
                            std::to_string(sections[i]));
    }
  }
  return std::nullopt;
}

std::optional<ContradictedArg> of_experts(const FiledState& state) {
  std::set<uint32_t> experts;
  for (const TrainedParam& param : state.params) {
    if (const auto expert = expert_in(param.info.name)) experts.insert(expert->number);
  }
  const uint64_t stated = state.facts.expert_count;
  if (experts.empty() || stated == 0 || experts.size() == stated) return std::nullopt;
  return contradicted("num_experts", std::to_string(stated),
                      "the model has " + std::to_string(experts.size()) + " experts");
}

}  // namespace

bool layers_are_described(const FiledState& state) {
  return std::ranges::any_of(
      std::array{"heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"},
      [&](const char* name) {
        const auto value = state.args().find(name);
        return value && value->is(ckpt::Kind::Str);
      });
}

// A store under GTP has more rows than args state, which is no fault of args.
static std::optional<WithoutGtp> padded_by_gtp(const FiledState& state) {
  std::optional<WithoutGtp> rows;
  unless_damaged([&] { rows = without_gtp(state); });
  if (rows && rows->first.empty()) rows.reset();
  return rows;
}

std::vector<ContradictedArg> contradicted_args(const FiledState& state) {
  if (const auto rows = padded_by_gtp(state)) return contradicted_args(rows->state);
  const StatedArgs args(state.args());
  ContradictedArgs found;
  for (const EmbeddingSize& row : kEmbeddingSizes) found.add(of_embedding(row, state, args));
  found.add(of_matrices(state, args));
  found.add(of_gating(state));
  found.add(of_glu_blocks(state));
  found.add(of_layers(state));
  found.add(of_segments(state, args));
  found.add(of_experts(state));
  found.add(of_vocabulary(state));
  found.add(of_positions(state, args));
  found.add(of_output(state));
  found.add(of_mtp(state, args));
  if (layers_are_described(state)) return found.take();
  const std::vector<KnownLayer> layers = known_layers(state);
  found.add(of_rank_files(layers, state, args));
  found.add(contradicted_attention(layers, args));
  found.add(contradicted_modules(layers, args));
  return found.take();
}

std::optional<ContradictedArg> contradicted_arg(const FiledState& state, Decides least) {
  std::vector<ContradictedArg> all = contradicted_args(state);
  const auto found = std::ranges::find_if(
      all, [&](const ContradictedArg& wrong) { return wrong.decides >= least; });
  return found != all.end() ? std::optional(std::move(*found)) : std::nullopt;
}

void check_args(const OpenedTraining& checkpoint, VerifyReport& report) {
  if (!has_training_state(checkpoint)) return;
  unless_damaged(
      [&] { check_args(read_training_state(checkpoint, {.model_only = true}), report); });
}

void check_args(const FiledState& state, VerifyReport& report) {
  for (const ContradictedArg& found : contradicted_args(state)) {
    report.find({.file = {}, .key = "args." + found.name}, found.problem,
                "the arguments may be those of a different run, or parameters are missing");
  }
}

}  // namespace optim
