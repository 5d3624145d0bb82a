#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <common/text.h>
#include <nlohmann/json.hpp>

#include "inspect/load/resume.h"

// What the rules of resume.h are written with.
namespace tools::inspect {

using nlohmann::json;

// What an argument that is another one than the checkpoint's changes.
enum class Effect : uint8_t {
  None,        // nothing that is loaded, nor the step from given gradients
  Size,        // rules of sizes
  Load,        // rules of loading
  Scheduler,   // compared with the stored scheduler
  Step,        // the step
  Overruled,   // nothing: the checkpoint's groups have it
  Gradients,   // the forward or backward pass
  Shape,       // shapes of parameters
  AddsParams,  // parameters that the checkpoint does not have
  DropsParams,
  Buckets,    // flat buffers
  Optimizer,  // the kind of optimizer
  Dtype,
};
// Nothing: what it does to a load is not known.
std::optional<Effect> effect_of(std::string_view name);
// Whether there is a rule or a row for it, beside what is known of arguments in general.
bool has_own_effect(std::string_view name);

// Where a message is raised: a file, its line in each tree; 0: not there, or not looked up.
struct Raised {
  std::string_view file;
  std::array<int, kTrees> lines = {};
};
inline constexpr std::string_view kLoading = "megatron/training/checkpointing.py";
inline constexpr Raised kNoModel = {kLoading, {1593, 1771, 1880, 1856, 1905, 2541, 2944}};

// A run's question: arguments of the checkpoint and of the run, and what differs.
class ResumeCase {
 public:
  ResumeCase(const ResumeFacts& checkpoint, const ResumeRun& asked)
      : facts(checkpoint), tree(asked.tree), run(asked), changes_(asked.changes) {
    if (flag("use_checkpoint_args")) take_args_of_checkpoint();
    follow();
  }

  json old(std::string_view name) const { return value(facts.args, name); }
  json now(std::string_view name) const {
    return changes_.contains(name) ? changes_[std::string(name)] : old(name);
  }
  bool flag(std::string_view name) const {
    const json found = value(changes_, name);
    return found.is_boolean() && found.get<bool>();
  }
  bool is_on(std::string_view name) const {
    const json found = now(name);
    return found.is_boolean() && found.get<bool>();
  }
  uint64_t size(std::string_view name) const { return positive(now(name)); }
  uint64_t old_size(std::string_view name) const { return positive(old(name)); }
  bool is_other_size(std::string_view name) const { return size(name) != old_size(name); }
  bool is_other(std::string_view name) const {
    return changes_.contains(name) && now(name) != old(name);
  }
  bool has(Effect effect) const { return !names(effect).empty(); }
  // Arguments with that effect that are others than the checkpoint's.
  std::vector<std::string> names(Effect effect) const {
    std::vector<std::string> found;
    for (const auto& [name, value] : changes_.items()) {
      if (effect_of(name) == effect && is_other(name)) found.push_back(name);
    }
    return found;
  }
  std::optional<std::string> unknown() const {
    for (const auto& [name, value] : changes_.items()) {
      if (!effect_of(name) && is_other(name)) return name;
    }
    return std::nullopt;
  }

  uint64_t tp() const { return size("tensor_model_parallel_size"); }
  uint64_t pp() const { return size("pipeline_model_parallel_size"); }
  uint64_t cp() const { return size("context_parallel_size"); }
  uint64_t ep() const { return size("expert_model_parallel_size"); }
  uint64_t old_ep() const { return old_size("expert_model_parallel_size"); }
  uint64_t dp() const { return size("world_size") / (tp() * pp() * cp()); }
  uint64_t old_dp() const { return old_size("data_parallel_size"); }
  uint64_t chunks() const {
    if (pp() == 1) return 1;
    const char* const typed = "num_virtual_stages_per_pipeline_rank";
    return changes_.contains(typed) ? positive(now(typed))
                                    : old_size("virtual_pipeline_model_parallel_size");
  }
  uint64_t old_chunks() const { return old_size("virtual_pipeline_model_parallel_size"); }
  bool is_other_tp_or_pp() const {
    return is_other_size("tensor_model_parallel_size") ||
           is_other_size("pipeline_model_parallel_size");
  }
  bool starts_anew() const { return flag("finetune") || facts.is_release; }
  bool wants_optimizer() const { return !flag("no_load_optim") && !starts_anew(); }
  bool wants_random_numbers() const {
    return !flag("no_load_rng") && !starts_anew() && !(facts.is_dist && is_other_tp_or_pp());
  }
  bool has_experts() const { return !old("num_experts").is_null(); }
  // Experts are filed apart where they are split over ranks.
  bool splits_experts_otherwise() const { return has_experts() && (ep() > 1) != (old_ep() > 1); }

  const ResumeFacts& facts;
  MegatronTree tree;
  const ResumeRun& run;

 private:
  static json value(const json& object, std::string_view name) {
    const auto found = object.find(name);
    return found == object.end() ? json() : *found;
  }
  static uint64_t positive(const json& number) {
    return number.is_number_integer() && number.get<int64_t>() > 0 ? number.get<uint64_t>() : 1;
  }

  // --use-checkpoint-args: what the command line does not say is the checkpoint's, some in any
  // case.
  void take_args_of_checkpoint() {
    constexpr std::string_view kForced =
        "add_bias_linear add_qkv_bias apply_layernorm_1p attention_dropout disable_bias_linear "
        "hidden_dropout moe_ffn_hidden_size moe_grouped_gemm moe_layer_freq "
        "moe_router_pre_softmax moe_router_topk moe_shared_expert_intermediate_size "
        "normalization num_experts num_query_groups position_embedding_type rotary_base "
        "rotary_interleaved rotary_percent squared_relu swiglu tokenizer_model tokenizer_type "
        "untie_embeddings_and_output_weights";
    for (const std::string_view forced : split(kForced, " ")) changes_.erase(std::string(forced));
    if (flag("use_mp_args_from_checkpoint_args")) {
      for (const char* size :
           {"tensor_model_parallel_size", "pipeline_model_parallel_size",
            "num_virtual_stages_per_pipeline_rank", "expert_model_parallel_size"}) {
        changes_.erase(size);
      }
    }
    for (auto change = changes_.begin(); change != changes_.end();) {
      change = change->is_null() ? changes_.erase(change) : std::next(change);
    }
  }

  // What follows from others where the command line does not say it, as arguments.py does.
  void follow() {
    const auto follow_one = [&](const char* name, const char* leader) {
      if (changes_.contains(leader) && !changes_.contains(name) && old(name) == old(leader)) {
        changes_[name] = changes_[leader];
      }
    };
    follow_one("lr_decay_iters", "train_iters");
    follow_one("start_weight_decay", "weight_decay");
    follow_one("end_weight_decay", "weight_decay");
  }

  json changes_;
};

// What a rule says: how the load ends, or nothing where it goes on.
using RuleAnswer = std::optional<ResumeCertificate>;
using ResumeRule = RuleAnswer (*)(const ResumeCase&);
std::span<const ResumeRule> store_rules();                // of torch_dist
std::span<const ResumeRule> rank_file_rules();            // of torch
RuleAnswer arguments_are_the_same(const ResumeCase& of);  // check_checkpoint_args
RuleAnswer rates_of_groups_are_the_same(
    const ResumeCase& of);  // by which 0.19 finds parameter groups

// What weights_only of a release refuses to load; empty: nothing that is known of.
std::string unsupported_global(const ResumeCase& of);
ResumeCertificate refusal(const ResumeCase& of, const Raised& raised, std::string message);
ResumeCertificate not_known(std::string what);
std::string python_text(const json& value);
std::string option_list(const std::vector<std::string>& names);  // "--lr, --min-lr"

}  // namespace tools::inspect
