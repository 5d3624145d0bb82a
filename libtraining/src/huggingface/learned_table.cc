#include "huggingface/learned_groups.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include <ckpt/printed.h>

namespace optim {
namespace {

using nlohmann::json;
using Evidence = LearnedGroup::Evidence;

// Arguments of Megatron-LM that say which model it is: the table holds for this one.
constexpr std::string_view kModelArgs =
    "activation_func_clamp_value add_bias_linear add_qkv_bias apply_layernorm_1p "
    "apply_residual_connection_post_layernorm attention_output_gate beta_fast beta_slow "
    "experimental_attention_variant ffn_hidden_size gated_linear_unit glu_linear_offset "
    "group_query_attention hidden_size hybrid_layer_pattern hybrid_override_pattern "
    "init_method_std kv_channels kv_lora_rank layernorm_epsilon layernorm_zero_centered_gamma "
    "linear_attention_freq linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads "
    "linear_num_value_heads linear_value_head_dim mamba_chunk_size mamba_head_dim "
    "mamba_num_groups mamba_num_heads mamba_state_dim max_position_embeddings "
    "moe_aux_loss_coeff moe_apply_probs_on_input moe_expert_capacity_factor "
    "moe_ffn_hidden_size moe_latent_size moe_layer_freq moe_mlp_glu_interleave_size "
    "moe_router_enable_expert_bias moe_router_group_topk moe_router_load_balancing_type "
    "moe_router_num_groups moe_router_pre_softmax moe_router_score_function moe_router_topk "
    "moe_router_topk_limited_devices moe_router_topk_scaling_factor moe_shared_expert_gate "
    "moe_shared_expert_glu_interleave_size moe_shared_expert_intermediate_size mscale "
    "mscale_all_dim mtp_num_layers mtp_use_repeated_layer multi_latent_attention no_rope_freq "
    "norm_epsilon normalization num_attention_heads num_experts num_layers num_query_groups "
    "openai_gelu original_max_position_embeddings position_embedding_type q_lora_rank "
    "qk_head_dim qk_l2_norm qk_layernorm qk_pos_emb_head_dim query_pre_attn_scalar "
    "quick_geglu rope_scaling_factor rope_type rotary_base rotary_base_local "
    "rotary_interleaved rotary_percent rotary_scaling_factor "
    "rotary_seq_len_interpolation_factor softmax_scale softmax_type spec squared_relu swiglu "
    "untie_embeddings_and_output_weights use_grouped_gemm_for_dense_mlp use_mup "
    "use_rope_scaling use_rotary_position_embeddings v_head_dim window_attn_skip_freq "
    "window_size yarn_beta_fast yarn_beta_slow yarn_correction_range_round_to_int "
    "yarn_original_max_position_embeddings";
// Of the run, by which its modules have other names.
constexpr std::string_view kImplementation[] = {"moe_grouped_gemm", "transformer_impl"};
// Of who wrote a folder, or told otherwise.
constexpr std::string_view kNotOfModel[] = {
    "architectures", "model_type",   "transformers_version", "_name_or_path",       "torch_dtype",
    "auto_map",      "_commit_hash", "quantization_config",  "_attn_implementation"};

// --- literals of expressions ---

std::optional<std::string> list_of(const json& list);

std::optional<std::string> literal(const json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.find('\'') != text.npos) return std::nullopt;
    return "'" + text + "'";
  }
  if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    return number < 0 ? "0 - " + std::to_string(-number) : std::to_string(number);
  }
  if (value.is_number()) {
    std::array<char, 512> text;
    const double number = value.get<double>();
    const auto [end, error] =
        std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc() || !(number >= 0)) return std::nullopt;
    std::string made(text.data(), end);
    return made.find('.') == made.npos ? made + ".0" : made;
  }
  return list_of(value);
}

std::optional<std::string> list_of(const json& list) {
  std::string made;
  for (const auto& [name, value] : list.items()) {
    const auto one = literal(value);
    const auto key = literal(json(name));
    if (!one || !key) return std::nullopt;
    made += (made.empty() ? "" : ", ") + (list.is_object() ? *key + ": " : "") + *one;
  }
  return list.is_object() ? "{" + made + "}" : "[" + made + "]";
}

// --- rows ---

const std::string kDecoder = "decoder.layers.{layer}.", kFurther = "mtp.layers.{mtp}.";

// "mtp.layers.{mtp}.mtp_model_layer." of a pattern whose end is that of a decoder's; empty: none.
std::string further_front(const std::string& pattern, const std::vector<std::string>& sources) {
  if (!pattern.starts_with(kFurther)) return {};
  for (const std::string& source : sources) {
    if (!source.starts_with(kDecoder)) continue;
    const std::string rest = source.substr(kDecoder.size());
    if (pattern.ends_with("." + rest)) return pattern.substr(0, pattern.size() - rest.size());
  }
  return {};
}

class TableWriter {
 public:
  explicit TableWriter(const LearnedModel& model) : model_(model) {}

  void add(const LearnedGroup& group) {
    json row = json::object();
    std::vector<std::string> from;
    for (const std::string& source : group.sources) {
      const std::string front = further_front(source, group.sources);
      if (!front.empty()) {
        fronts_.insert(front);
        continue;
      }
      for (const std::string& name : names_of_both(source, model_.rules)) from.push_back(name);
    }
    for (const auto& [name, value] : group.row.let) let_[name] = value;
    const auto& parts = group.row.row.parts;
    for (const RowPart& part : parts) {
      json made = {{"view", part.view}};
      if (!part.as.empty()) made["as"] = part.as;
      if (!part.slice.empty()) made["slice"] = part.slice;
      if (!part.rows.empty()) made["rows"] = part.rows;
      json names = parts.size() > 1 ? json(names_of_both(part.from[0], model_.rules)) : json(from);
      if (names.size() == 1) names = json(names[0]);
      made["from"] = std::move(names);
      if (parts.size() > 1) row["parts"].push_back(std::move(made));
      if (parts.size() == 1) row = std::move(made);
    }
    if (group.added == 1) row["add"] = "1";
    if (group.added == -1) row["add"] = "0 - 1";
    const std::string when = condition(group);
    if (!when.empty()) row["when"] = when;
    tensors_[group.pattern] = std::move(row);
  }

  json finish() {
    json table = {{"schema_version", 1}, {"let", let_}, {"tensors", tensors_}};
    if (model_.further == 0) return table;
    table["further_layers"] = {{"count", "first(mtp_num_layers, 0)"}};
    if (!fronts_.empty()) table["further_layers"]["names"][kDecoder] = fronts_;
    return table;
  }

 private:
  // Which layers have it; empty: all.
  std::string condition(const LearnedGroup& group) const {
    std::set<uint32_t> layers;
    for (const uint32_t member : group.members) {
      if (const auto layer = model_.folder[member].numbered.numbers.layer) layers.insert(*layer);
    }
    if (layers.empty()) return {};
    const bool is_further = group.row.row.parts[0].from[0].starts_with(kFurther);
    const uint32_t first = is_further ? model_.layers : 0, end = model_.layers + model_.further;
    if (*layers.begin() == first && layers.size() == end - first) return {};
    if (*layers.begin() == 0 && *layers.rbegin() + 1 == model_.layers &&
        layers.size() == model_.layers) {
      return "layer < num_layers";
    }
    return "layer in [" + ckpt::joined(layers) + "]";
  }

  const LearnedModel& model_;
  json let_ = json::object(), tensors_ = json::object();
  std::set<std::string> fronts_;  // of names of further layers
};

}  // namespace

json learned_table(const LearnedGroups& groups, const LearnedModel& model,
                   std::vector<std::string>& left_out) {
  TableWriter writer(model);
  for (const LearnedGroup& group : groups.groups()) {
    if (group.evidence != Evidence::None) writer.add(group);
  }
  json table = writer.finish();
  const json architectures = model.config.value("architectures", json::array());
  table["architecture"] = architectures.empty() ? json("") : json(architectures[0]);
  table["model_type"] = model.config.value("model_type", json(""));
  const auto put = [&](const char* section, const std::string& name, const json& value,
                       const std::string& front) {
    const auto text = literal(value);
    if (text) table[section][name] = front + *text;
    if (!text) left_out.push_back(name);
  };
  std::istringstream args{std::string(kModelArgs)};
  for (std::string name; args >> name;) {
    const auto value = model.args.find(name);
    if (value == model.args.end()) continue;
    put("requires", name, *value, name + " == ");
    put("args", name, *value, "");
  }
  for (const std::string_view arg : kImplementation) {
    const auto value = model.args.find(arg);
    if (value != model.args.end()) put("args", std::string(arg), *value, "");
  }
  table["args"]["vocab_size"] = "vocab_size";
  for (const auto& [name, value] : model.config.items()) {
    if (std::ranges::find(kNotOfModel, name) == std::end(kNotOfModel)) {
      put("config", name, value, "");
    }
  }
  table["config"]["dtype"] = "dtype";
  const bool is_of_tokens = model.config.value("vocab_size", json()) == json(model.tokens);
  if (is_of_tokens) table["config"]["vocab_size"] = "vocabulary";
  return table;
}

}  // namespace optim
