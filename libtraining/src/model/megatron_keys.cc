// Names of a state dict from and to keys of a sharded state dict.
#include "model/megatron_keys.h"

#include <algorithm>

#include <ckpt/error.h>
#include <training/key_kind.h>

#include "model/tensor_names.h"

namespace optim {
namespace {

constexpr std::string_view kMtpTransformerLayer = "transformer_layer.";  // in torch_dist

// Of a key, or of what is not in a stack: of the model.
ModelRules::KeyFlavor flavor_of(std::string_view key, const KeyRules& rules) {
  return {stack_rules(key, rules).layer_norm_renamed, rules.experts_grouped};
}

// The local transformer implementation has separate layer norms, which its sharded state dict files
// under the names that TransformerEngine's fused modules have.
std::string_view key_in_layer(const NameInLayer& name, const KeyRules& rules, bool is_renamed) {
  const auto found = rules.table->find_in_layer(name);
  if (!found) return name.rest;
  const ModelRule& rule = *found->rule;
  if (is_renamed && !rule.local_key.empty()) return rule.local_key;
  return rule.key.empty() ? name.rest : rule.key;
}

std::string name_in_layer(std::string_view key, const ShardedName& sharded, const KeyRules& rules) {
  const ModelRule* const rule = rules.table->find_by_key(key, flavor_of(sharded.key, rules));
  if (rule == nullptr) return std::string(key);
  return sharded.expert ? with_expert(rule->name, *sharded.expert) : rule->name;
}

// "mtp.layers.0.mtp_model_layer.": what is before the rest of a name in its own layer; torch_dist
// calls it transformer_layer, but for one that is a stack of layers of a hybrid model, of which
// "layers.1." is before the rest, too.
struct MtpLayer {
  std::string before_in_model, before_in_store;
  std::string_view rest;
};
std::optional<MtpLayer> mtp_model_layer(std::string_view name) {
  const auto in_mtp = split_mtp_layer(name);
  if (!in_mtp) return std::nullopt;
  for (const std::string_view layer : {kMtpModelLayer, kMtpTransformerLayer}) {
    if (!in_mtp->rest.starts_with(layer)) continue;
    const std::string before = std::string(kMtpLayersPrefix) + std::to_string(in_mtp->layer) + ".";
    const std::string_view rest = in_mtp->rest.substr(layer.size());
    if (const auto inner = split_inner_layer(rest)) {
      const std::string stack(name.substr(0, name.size() - inner->rest.size()));
      return MtpLayer{stack, stack, inner->rest};
    }
    return MtpLayer{before + std::string(kMtpModelLayer),
                    before + std::string(kMtpTransformerLayer), rest};
  }
  return std::nullopt;
}

// What follows "decoder.layers.", and a layer's number if there is one.
std::optional<std::string_view> key_behind_layers(std::string_view key) {
  if (const auto in_layer = split_stack(key)) return in_layer->rest;
  if (is_stacked_key(key)) return key.substr(stack_of(key).size());
  if (const auto in_mtp = mtp_model_layer(key)) return in_mtp->rest;
  return std::nullopt;
}

constexpr std::string_view kModels[] = {"model", "models", "module", "state_dict",
                                        "model_state_dict"};

// States of torch's optimizers and of Adafactor that no parameter is called like.
constexpr std::string_view kStates[] = {"exp_avg_sq_row", "exp_avg_sq_col", "max_exp_avg_sq",
                                        "square_avg",     "acc_delta",      "grad_avg",
                                        "exp_inf"};
// Others of theirs, which have a meaning below "state" alone.
constexpr std::string_view kStatesBelowState[] = {
    "step", "sum", "ax", "mu", "eta", "prev", "step_size", "row_var", "col_var", "RMS", "variance"};
constexpr std::string_view kAverages[] = {"ema", "EMA"};
constexpr std::string_view kProgress[] = {"loss",  "metric", "accuracy",  "epoch",  "step",
                                          "steps", "tokens", "iteration", "samples"};
constexpr std::string_view kRandom[] = {"rng", "random_state", "numpy_random_seed"};

// A word of "model_ema", "best_loss".
template <class Words>
bool has_word(std::string_view step, const Words& words) {
  while (!step.empty()) {
    const size_t end = std::min(step.find('_'), step.size());
    if (is_word_of(step.substr(0, end), words)) return true;
    step.remove_prefix(std::min(end + 1, step.size()));
  }
  return false;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

bool is_state_step(std::string_view step) { return step == "state" || step == "param_groups"; }

// A pointer's steps have dots in them; in other keys dots and slashes separate.
std::string_view take_step(std::string_view& key, bool is_pointer) {
  const auto ends = [=](char c) { return c == '/' || (c == '.' && !is_pointer); };
  const auto end = static_cast<size_t>(std::ranges::find_if(key, ends) - key.begin());
  const std::string_view step = key.substr(0, end);
  key.remove_prefix(std::min(end + 1, key.size()));
  return step;
}

std::string_view last_step(std::string_view key) { return key.substr(key.find_last_of("./") + 1); }

bool is_state_of_torch(std::string_view step) {
  return is_state_name(step) || is_word_of(step, kStates) || is_word_of(step, kStatesBelowState);
}

bool names_an_optimizer(std::string_view key) {
  const bool is_pointer = key.starts_with('/');
  if (is_pointer) key.remove_prefix(1);
  bool is_in_model = false;
  for (bool is_first = true; !key.empty(); is_first = false) {
    const std::string_view step = take_step(key, is_pointer);
    std::string_view rest = key;
    const std::string_view next = take_step(rest, is_pointer);
    if (key.empty()) return false;  // the last step names a tensor
    if (is_optimizer_step(step) && (!is_in_model || is_state_step(next))) return true;
    if (is_first && step == "state" && is_pointer && is_number(next)) return true;
    if (is_first && step == "state" && is_state_of_torch(last_step(key))) return true;
    if (is_first && (is_state_name(step) || is_word_of(step, kStates)))
      return true;  // by their names
    is_in_model = is_in_model || is_word_of(step, kModels);
  }
  return false;
}

// "/ema/fc.weight", "/state_dict/model_ema.fc.weight", "model_ema.fc.weight".
bool names_an_average(std::string_view key) {
  if (key.starts_with('/')) key.remove_prefix(1);
  std::string_view step = take_step(key, false);
  while (is_word_of(step, kModels) && !key.empty()) step = take_step(key, false);
  return !key.empty() && has_word(step, kAverages);
}

bool names_random_state(std::string_view key) {
  if (contains(key, "rng_state") || contains(key, "rng_tracker")) return true;
  if (contains(key, "manual_seed")) return true;  // Accelerate
  while (!key.empty()) {
    if (is_word_of(take_step(key, false), kRandom)) return true;
  }
  return false;
}

// "/loss", "ntokens_seen": not below anything.
bool names_progress(std::string_view key) {
  if (key.starts_with('/')) key.remove_prefix(1);
  return key.find_first_of("./") == key.npos && (has_word(key, kProgress) || key == "ntokens_seen");
}

}  // namespace

LayerStack stack_rules(std::string_view name, const KeyRules& rules) {
  const std::string_view prefix = stack_of(name);
  const auto known = std::ranges::find(rules.stacks, prefix, &LayerStack::prefix);
  if (known != rules.stacks.end()) return *known;
  return {std::string(prefix), rules.layer_count, rules.layers_stacked, rules.layer_norm_renamed};
}

ShardedName sharded_name(std::string_view name, const KeyRules& rules) {
  const auto in_mtp = mtp_model_layer(name);
  const auto in_layer = in_mtp ? NameInLayer{0, in_mtp->rest} : split_stack(name);
  if (!in_layer) return {std::string(name)};
  const LayerStack stack = stack_rules(in_mtp ? kLayersPrefix : in_layer->stack, rules);
  const std::string_view key = key_in_layer(*in_layer, rules, stack.layer_norm_renamed);
  ShardedName sharded;
  if (const auto expert = expert_in(name); expert && key != in_layer->rest) {
    sharded.expert = expert->number;
  }
  const bool is_stacked = stack.is_stacked && !in_mtp;
  if (is_stacked) sharded.layer = in_layer->layer;
  sharded.key = in_mtp       ? in_mtp->before_in_store + std::string(key)
                : is_stacked ? std::string(in_layer->stack).append(key)
                             : join_layer(in_layer->layer, key, in_layer->stack);
  return sharded;
}

std::string state_dict_name(const ShardedName& sharded, const KeyRules& rules) {
  const auto key = key_behind_layers(sharded.key);
  if (!key) return sharded.key;
  const std::string name = name_in_layer(*key, sharded, rules);
  if (sharded.layer) return join_layer(*sharded.layer, name, stack_of(sharded.key));
  if (const auto in_mtp = mtp_model_layer(sharded.key)) return in_mtp->before_in_model + name;
  const auto in_layer = split_stack(sharded.key);
  return in_layer ? join_layer(in_layer->layer, name, in_layer->stack) : sharded.key;
}

std::string mtp_name_in_model(std::string_view name) {
  auto in_mtp = mtp_model_layer(name);
  return in_mtp ? in_mtp->before_in_model.append(in_mtp->rest) : std::string(name);
}

std::string mtp_name_in_store(std::string_view name) {
  auto in_mtp = mtp_model_layer(name);
  return in_mtp ? in_mtp->before_in_store.append(in_mtp->rest) : std::string(name);
}

StackedAxes stacked_axes(std::string_view key, const KeyRules& rules) {
  const auto rest = key_behind_layers(key);
  if (!rest) return {};
  const ModelRule* const rule = rules.table->find_by_key(*rest, flavor_of(key, rules));
  return {is_stacked_key(key), rule != nullptr && is_of_experts(*rule)};
}

std::optional<ModelRules::SegmentOfRule> segment_of_key(std::string_view key,
                                                        const KeyRules& rules) {
  if (!rules.table->is_name_of_segment(key.substr(key.rfind('.') + 1))) return std::nullopt;
  const auto rest = key_behind_layers(key);
  if (!rest) return std::nullopt;
  ModelRules::SegmentOfRule found = rules.table->find_segment(*rest, flavor_of(key, rules));
  if (found.rule == nullptr) return std::nullopt;
  found.key = key.substr(0, key.rfind('.'));
  return found;
}

bool is_stacked_key(std::string_view key) {
  const std::string_view stack = stack_of(key);
  return !stack.empty() && !split_stack(key) && key.size() > stack.size();
}

bool is_extra_state(std::string_view name) {
  return name == kExtraState || name.ends_with("._extra_state");
}

bool is_state_of_experts(std::string_view name) {
  return is_extra_state(name) && name.find(".experts.linear_fc") != name.npos;
}

TensorSharing sharing_by_rule(std::string_view name, const ckpt::Extents& shape,
                              const ModelRules& table, CutBy cut) {
  const auto found = table.find(name);
  if (!found || !segments_fit(*found->rule, shape, cut.ranks)) return {};
  return {true, split_of(*found->rule, shape, cut)};
}

std::string_view name(KeyKind kind) {
  static constexpr std::string_view kNames[] = {"model",        "optimizer_state", "rng_state",
                                                "common_state", "average",         "progress"};
  return kNames[static_cast<size_t>(kind)];
}

KeyKind kind_of_key(std::string_view file, std::string_view key) {
  const bool is_optimizer_file =
      contains(file, "layer_wise_optimizer_") || contains(file, "distrib_optim");
  if (is_optimizer_file || names_an_optimizer(key)) return KeyKind::OptimizerState;
  if (names_random_state(key)) return KeyKind::RngState;
  if (file == "common.pt") return KeyKind::CommonState;
  if (names_an_average(key)) return KeyKind::Average;
  return names_progress(key) ? KeyKind::Progress : KeyKind::Model;
}

}  // namespace optim
