#include "verify/model_args.h"

#include <algorithm>
#include <set>
#include <utility>

#include "model/model_rules.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

struct LayerPlace {
  bool is_decoder = false;
  uint32_t layer = 0;
  auto operator<=>(const LayerPlace&) const = default;
};

std::optional<LayerPlace> place_of(std::string_view name) {
  if (const auto in_layer = split_layer(name)) return LayerPlace{true, in_layer->layer};
  const auto in_mtp = split_mtp_layer(name);
  if (!in_mtp || !in_mtp->rest.starts_with(kMtpModelLayer)) return std::nullopt;
  return LayerPlace{false, in_mtp->layer};
}

std::string prefix_of(const LayerPlace& place) {
  if (place.is_decoder) return join_layer(place.layer, "");
  return std::string(kMtpLayersPrefix) + std::to_string(place.layer) + "." +
         std::string(kMtpModelLayer);
}

void add_to(const TrainedParam& param, const ModelRule& rule, KnownLayer& layer) {
  if (!is_of_experts(rule)) {
    layer.tensors.emplace(rule.name, &param.weight->shape);
  } else if (layer.expert == nullptr && rule.name.find("linear_fc2.weight") != rule.name.npos) {
    layer.expert = &param;
  }
}

constexpr std::string_view kQueryNorm = "self_attention.q_layernorm.weight";

struct Attention {
  uint64_t heads = 0, groups = 0, channels = 0;
  bool is_grouped = false, has_gate = false;

  uint64_t columns() const { return heads * channels; }  // of linear_proj
  uint64_t queries(uint64_t of) const { return has_gate ? 2 * of : of; }
  uint64_t rows(uint64_t of) const { return queries(of) + 2 * groups * channels; }
};

// nullopt: args do not say, or with numbers that no model has.
std::optional<Attention> stated_attention(const StatedArgs& args) {
  constexpr uint64_t kMax = uint64_t{1} << 20;
  Attention stated;
  const auto heads = args.size("num_attention_heads");
  const auto hidden = args.size("hidden_size");
  if (!heads || *heads > kMax) return std::nullopt;
  auto channels = args.size("kv_channels");
  if (!channels && hidden && *hidden % *heads == 0) channels = *hidden / *heads;
  stated.is_grouped = args.is_set("group_query_attention");
  const auto groups = stated.is_grouped ? args.size("num_query_groups") : heads;
  if (!channels || !groups || *channels > kMax || *groups > kMax) return std::nullopt;
  stated.heads = *heads;
  stated.groups = *groups;
  stated.channels = *channels;
  stated.has_gate = args.is_set("attention_output_gate");
  return stated;
}

// The two matrices of a layer.
struct Matrices {
  uint64_t columns = 0, rows = 0;
  std::optional<uint64_t> channels = {};  // by a norm of each head's queries
};

std::string text_of(const Attention& stated, const Matrices& found, const KnownLayer& layer) {
  const std::string heads = std::to_string(stated.heads), groups = std::to_string(stated.groups),
                    channels = std::to_string(stated.channels);
  return heads + " heads in " + groups + " groups with args.kv_channels " + channels + " make " +
         std::to_string(stated.columns()) + " columns of linear_proj and " +
         std::to_string(stated.rows(stated.columns())) + " rows of linear_qkv, but " +
         layer.name_of(kLinearProj) + " has " + std::to_string(found.columns) + " columns and " +
         "linear_qkv " + std::to_string(found.rows) + " rows";
}

// Which of the arguments alone makes the matrices what they are, if another value does.
std::string_view wrong_one(const Attention& stated, const Matrices& found) {
  const bool has_columns = stated.columns() == found.columns;
  const bool has_rows = stated.rows(found.columns) == found.rows;
  if (has_columns) {
    Attention other = stated;
    other.has_gate = !stated.has_gate;
    if (other.rows(found.columns) == found.rows) return "attention_output_gate";
    return stated.is_grouped ? "num_query_groups" : "group_query_attention";
  }
  if (found.channels && *found.channels != stated.channels) return "kv_channels";
  if (has_rows) return "num_attention_heads";
  if (found.columns % stated.heads != 0) return "num_attention_heads";
  Attention other = stated;
  other.channels = found.columns / stated.heads;
  return other.rows(found.columns) == found.rows ? "kv_channels" : "num_attention_heads";
}

std::optional<ContradictedArg> of_qkv(const KnownLayer& layer, const Attention& stated) {
  Matrices found{layer.size(kLinearProj, 1), layer.size(kLinearQkv, 0)};
  if (found.columns == 0 || found.rows == 0) return std::nullopt;
  const auto norm = layer.tensors.find(kQueryNorm);
  if (norm != layer.tensors.end() && norm->second->size() == 1) {
    const uint64_t width = norm->second->front();
    if (width != found.columns) found.channels = width;  // else over all heads
  }
  const uint64_t channels = found.channels.value_or(stated.channels);
  const bool has_channels = channels == stated.channels;
  const bool fits = stated.columns() == found.columns && stated.rows(found.columns) == found.rows;
  if (fits && has_channels && stated.heads % stated.groups == 0) return std::nullopt;
  if (fits && has_channels) {
    return ContradictedArg{"num_query_groups",
                           "is " + std::to_string(stated.groups) +
                               ", which does not divide args.num_attention_heads, " +
                               std::to_string(stated.heads),
                           ContradictedArg::Decides::Cut};
  }
  const std::string_view name = fits ? "kv_channels" : wrong_one(stated, found);
  std::string problem = text_of(stated, found, layer);
  if (fits) {
    problem = "is " + std::to_string(stated.channels) + ", but " + layer.name_of(kQueryNorm) +
              " has " + std::to_string(channels) + " elements";
  } else if (name == "group_query_attention" || name == "attention_output_gate") {
    const bool is_on = name == "attention_output_gate" && stated.has_gate;
    problem = std::string(is_on ? "is True" : "is not set") + ": " + problem;
  } else {
    const uint64_t value = name == "num_query_groups"      ? stated.groups
                           : name == "num_attention_heads" ? stated.heads
                                                           : stated.channels;
    problem = "is " + std::to_string(value) + ": " + problem;
  }
  return ContradictedArg{std::string(name), std::move(problem), ContradictedArg::Decides::Cut};
}

// A matrix of multi-head latent attention: `per_head` x num_attention_heads, or only that. The sum
// of one or two arguments.
struct LatentSize {
  std::string_view rule;
  size_t axis;
  bool is_per_head;
  std::string_view first, second;
};

constexpr LatentSize kLatentSizes[] = {
    {"self_attention.linear_q_down_proj.weight", 0, false, "q_lora_rank", ""},
    {"self_attention.linear_q_up_proj.weight", 1, false, "q_lora_rank", ""},
    {kLatentKvUp, 1, false, "kv_lora_rank", ""},
    {"self_attention.linear_kv_down_proj.weight", 0, false, "qk_pos_emb_head_dim", "kv_lora_rank"},
    {kLinearProj, 1, true, "v_head_dim", ""},
    {kLatentKvUp, 0, true, "qk_head_dim", "v_head_dim"},
    {"self_attention.linear_q_proj.weight", 0, true, "qk_head_dim", "qk_pos_emb_head_dim"},
    {"self_attention.linear_q_up_proj.weight", 0, true, "qk_head_dim", "qk_pos_emb_head_dim"},
};

std::optional<ContradictedArg> of_latent(const LatentSize& row, const KnownLayer& layer,
                                         const StatedArgs& args) {
  const uint64_t found = layer.size(row.rule, row.axis);
  const auto first = args.size(row.first);
  const auto second = row.second.empty() ? std::optional<uint64_t>(0) : args.size(row.second);
  const auto heads =
      row.is_per_head ? args.size("num_attention_heads") : std::optional<uint64_t>(1);
  constexpr uint64_t kMax = uint64_t{1} << 20;
  if (found == 0 || !first || !second || !heads) return std::nullopt;
  const bool is_huge = *first > kMax || *second > kMax || *heads > kMax;
  if (!is_huge && *heads * (*first + *second) == found) return std::nullopt;
  std::string sum;
  if (!row.second.empty()) {
    sum += ", with args." + std::string(row.second) + " " + std::to_string(*second);
  }
  if (row.is_per_head) sum += ", for each of args.num_attention_heads " + std::to_string(*heads);
  return contradicted(row.first, std::to_string(*first) + sum,
                      has_size(layer.name_of(row.rule), found, row.axis));
}

}  // namespace

std::optional<uint64_t> StatedArgs::size(std::string_view name) const {
  const auto value = find(name);
  const bool is_size = value && value->is(Kind::Int) && value->as_int() > 0;
  return is_size ? std::optional(static_cast<uint64_t>(value->as_int())) : std::nullopt;
}

std::optional<bool> StatedArgs::flag(std::string_view name) const {
  const auto value = find(name);
  return value && value->is(Kind::Bool) ? std::optional(value->as_bool()) : std::nullopt;
}

std::optional<std::string_view> StatedArgs::word(std::string_view name) const {
  const auto value = find(name);
  return value && value->is(Kind::Str) ? std::optional(value->text()) : std::nullopt;
}

std::optional<bool> StatedArgs::is_number(std::string_view name) const {
  const auto value = find(name);
  if (!value || (!value->is(Kind::Int) && !value->is_none())) return std::nullopt;
  return value->is(Kind::Int);
}

std::string StatedArgs::text(std::string_view name) const {
  const auto value = find(name);
  if (!value) return "not set";
  switch (value->kind()) {
    case Kind::Int: return std::to_string(value->as_int());
    case Kind::Bool: return value->as_bool() ? "True" : "not set";
    case Kind::Str: return "'" + ckpt::escaped(value->text()) + "'";
    case Kind::None: return "not set";
    default: return "another value";
  }
}

ContradictedArg contradicted(std::string_view name, const std::string& stated,
                             const std::string& but, ContradictedArg::Decides decides) {
  return {std::string(name), "is " + stated + ", but " + but, decides};
}

std::string has_size(std::string_view tensor, uint64_t count, size_t axis) {
  return std::string(tensor) + " has " + std::to_string(count) + (axis == 0 ? " rows" : " columns");
}

void ContradictedArgs::add(std::optional<ContradictedArg> wrong) {
  if (!wrong) return;
  const bool is_known =
      std::ranges::find(found_, wrong->name, &ContradictedArg::name) != found_.end();
  if (!is_known) found_.push_back(std::move(*wrong));
}

uint64_t KnownLayer::size(std::string_view name, size_t axis) const {
  const auto found = tensors.find(name);
  return found != tensors.end() && found->second->size() == 2 ? (*found->second)[axis] : 0;
}

std::vector<KnownLayer> known_layers(const TrainingState& state) {
  std::map<LayerPlace, KnownLayer> layers;
  std::set<LayerPlace> foreign;
  for (const TrainedParam& param : state.params) {
    const auto place = place_of(param.info.name);
    if (!place || !param.weight) continue;
    if (const auto known = ModelRules::built_in().find(param.info.name)) {
      add_to(param, *known->rule, layers[*place]);
    } else {
      foreign.insert(*place);
    }
  }
  std::vector<KnownLayer> known;
  for (auto& [place, layer] : layers) {
    if (foreign.contains(place)) continue;
    layer.prefix = prefix_of(place);
    if (place.is_decoder) layer.decoder = place.layer;
    known.push_back(std::move(layer));
  }
  return known;
}

std::vector<ContradictedArg> contradicted_attention(const std::vector<KnownLayer>& layers,
                                                    const StatedArgs& args) {
  const auto stated = stated_attention(args);
  const bool is_latent = args.is_set("multi_latent_attention");
  for (const KnownLayer& layer : layers) {
    std::vector<ContradictedArg> found;
    if (layer.has(kLinearQkv) && !is_latent && stated) {
      if (auto wrong = of_qkv(layer, *stated)) found.push_back(std::move(*wrong));
    }
    for (const LatentSize& row : kLatentSizes) {
      if (!layer.has(kLatentKvUp) || !is_latent) break;
      const bool is_known = std::ranges::any_of(found, [&](const ContradictedArg& known) {
        return known.name == row.first || known.name == row.second;
      });
      if (is_known) continue;  // which explains this one
      if (auto wrong = of_latent(row, layer, args)) found.push_back(std::move(*wrong));
    }
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace optim
