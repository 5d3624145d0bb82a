// What a launch does otherwise than the run that wrote a checkpoint.
#include <algorithm>
#include <array>
#include <optional>

#include <common/text.h>

#include "inspect/load/launch.h"
#include "inspect/load/resume_case.h"

namespace tools::inspect {
namespace {

// Arguments that Megatron derives from others where they are not given: that one is not given says
// nothing of it.
constexpr std::string_view kDerived =
    "align_param_gather apply_rope_fusion async_strategy dataloader_type decoder_num_layers "
    "decoder_seq_length disable_chunked_prefill encoder_num_layers encoder_seq_length "
    "eval_global_batch_size eval_micro_batch_size exit_signal "
    "expert_tensor_parallel_num_weight_shards inference_cuda_graph_scope "
    "inference_max_batch_size inference_max_requests inprocess_active_world_size local_rank "
    "mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype "
    "megatron_fsdp_grad_comm_dtype megatron_fsdp_main_grads_dtype "
    "megatron_fsdp_main_params_dtype num_layers_per_virtual_pipeline_stage "
    "num_virtual_stages_per_pipeline_rank overlap_p2p_comm padded_vocab_size "
    "tensor_parallel_num_weight_shards yarn_correction_range_round_to_int";

// Arguments of which nothing is read without another one.
struct OnlyWith {
  std::string_view front, needs;
};
constexpr OnlyWith kOnlyWith[] = {{"data_parallel_sharding_strategy", "use_megatron_fsdp"},
                                  {"grpo_", "perform_rl_step"},
                                  {"megatron_fsdp_", "use_megatron_fsdp"},
                                  {"moe_", "num_experts"},
                                  {"mscale", "multi_latent_attention"},
                                  {"rl_", "perform_rl_step"}};

// A type's name on the command line, and as args have it.
std::string type_text(const std::string& word) {
  for (const auto& [typed, type] :
       {std::pair("fp32", "torch.float32"), std::pair("bf16", "torch.bfloat16"),
        std::pair("fp16", "torch.float16"), std::pair("fp8", "torch.uint8")}) {
    if (word == typed) return type;
  }
  return word;
}

// AttnBackend and the like, of which args have the number; -1: not known.
int number_of_backend(const std::string& word) {
  constexpr std::array<std::string_view, 5> kBackends = {"flash", "fused", "unfused", "local",
                                                         "auto"};
  const size_t dot = word.rfind('.');
  const auto name = std::string_view(word).substr(dot == word.npos ? 0 : dot + 1);
  const auto* const found = std::ranges::find(kBackends, name);
  return found == kBackends.end() ? -1 : static_cast<int>(found - kBackends.begin()) + 1;
}

bool is_same_object(const json& stored, const json& launched) {
  if (!launched.is_string()) return launched == stored;
  const auto& word = launched.get_ref<const std::string&>();
  if (stored.contains("$global")) return stored["$global"] == type_text(word);
  const auto number = json::json_pointer("/$object/args/$tuple/0");
  return stored.contains(number) && stored[number] == number_of_backend(word);
}

// A list as Python prints it: [0, 'a'].
std::string printed_list(const json& list) {
  const auto printed = [](const json& item) {
    return item.is_string() ? "'" + item.get<std::string>() + "'" : python_text(item);
  };
  return "[" + joined(list, ", ", printed) + "]";
}

// What Python takes for false where a flag is not given.
bool is_off(const json& value) {
  return value.is_null() || value == false || value == "None" || value == "False";
}

bool is_same(const json& stored, const json& launched) {
  if (stored == launched || (is_off(stored) && is_off(launched))) return true;
  if (stored.is_number() && launched.is_number()) {
    return stored.get<double>() == launched.get<double>();
  }
  if (stored.is_object()) return is_same_object(stored, launched);
  if (!launched.is_string()) return false;
  const auto& text = launched.get_ref<const std::string&>();
  if (stored.is_array())
    return json::parse(text, nullptr, false) == stored || printed_list(stored) == text;
  return python_text(stored) == text;
}

// As argparse makes it of the words; nothing where it would refuse them.
std::optional<json> value_of_words(const MegatronOption& option,
                                   const std::vector<ShellWord>& words) {
  const auto one = [&](const std::string& word) -> std::optional<json> {
    if (option.type == "str") return json(word);
    const json number = json::parse(word, nullptr, false);
    if (number.is_number()) return number;
    const bool is_number = option.type == "int" || option.type == "float";
    return is_number ? std::nullopt : std::optional(json(word));
  };
  using enum MegatronOption::Kind;
  if (option.kind == Value) return words.size() == 1 ? one(words[0].text) : std::nullopt;
  if (option.kind != List) return words.empty() ? std::optional(json()) : std::nullopt;
  json list = json::array();
  for (const ShellWord& word : words) {
    const auto value = one(word.text);
    if (!value) return std::nullopt;
    list.push_back(*value);
  }
  return list;
}

// Compares one launch with one checkpoint, option by option.
class Comparison {
 public:
  Comparison(const Launch& launch, const ResumeFacts& checkpoint, ResumeRun& run)
      : launch_(launch),
        stored_(checkpoint.args),
        is_layer_wise_(checkpoint.is_layer_wise),
        run_(run),
        options_(options_of(run.tree)) {}

  void compare() {
    if (!launch_.missing.empty()) say_missing(launch_.missing);
    refuse_unknown_options();
    for (const MegatronOption& option : options_) read(option);
    derive();
    for (const MegatronOption& option : options_) compare(option);
    if (launch_.processes) set("world_size", *launch_.processes);
  }

 private:
  void say_missing(std::string what) {
    if (run_.missing.empty()) run_.missing = std::move(what);
  }

  void set(const std::string& name, json value) {
    if (!run_.changes.contains(name)) run_.changes[name] = std::move(value);
  }

  void refuse_unknown_options() {
    for (const auto& [spelling, words] : launch_.options) {
      const OptionIn found = where_is(spelling, run_.tree);
      if (found == OptionIn::Others) run_.unrecognized = spelling;
      if (found == OptionIn::None) {
        say_missing("what " + spelling + " is: no release of Megatron-LM has that option");
      }
    }
  }

  // As effects are listed: by the option's name where that has one.
  static std::string name_of(const MegatronOption& option) {
    std::string typed(option.spellings[0].substr(2));
    std::ranges::replace(typed, '-', '_');
    return has_own_effect(typed) ? typed : std::string(option.argument);
  }

  void read(const MegatronOption& option) {
    const std::string argument(option.argument);
    if (launch_.is_printed) {
      for (const std::string_view called : option.arguments) {
        const auto found = launch_.printed.find(called);
        if (found != launch_.printed.end()) launched_[argument] = *found;
      }
      return;
    }
    if (!launched_.contains(argument)) launched_[argument] = option.preset;
    for (const std::string_view spelling : option.spellings) {
      const auto given = launch_.options.find(std::string(spelling));
      if (given == launch_.options.end()) continue;
      using enum MegatronOption::Kind;
      const bool is_no =
          option.kind == False || (option.kind == Either && spelling.starts_with("--no-"));
      const bool is_told = std::ranges::all_of(
          given->second, [](const ShellWord& word) { return word.missing.empty(); });
      const auto value = is_told ? value_of_words(option, given->second) : json("$");
      const bool is_flag = option.kind != Value && option.kind != List;
      note_missing(option, given->second);
      if (!value) say_missing("what " + std::string(spelling) + " is given");
      given_.insert(argument);
      launched_[argument] = is_flag ? json(!is_no) : value.value_or(json());
    }
  }

  // A value that the file does not tell, of an option that a load depends on.
  void note_missing(const MegatronOption& option, const std::vector<ShellWord>& words) {
    const auto effect = effect_of(name_of(option));
    const bool matters = effect != Effect::None && effect != Effect::Gradients;
    if (!matters || run_.changes.contains(name_of(option))) return;
    for (const ShellWord& word : words) {
      if (!word.missing.empty())
        say_missing(std::string(option.spellings[0]) + ": " + word.missing);
    }
  }

  json launched(const char* argument) const { return launched_.value(argument, json()); }

  std::optional<double> number(const char* argument) const {
    const json value = launched(argument);
    return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
  }

  // What Megatron makes of arguments that are not given.
  void derive() {
    if (launch_.is_printed) return name_optimizer();
    const auto follow = [&](const char* argument, const json& value) {
      if (launched(argument).is_null()) launched_[argument] = value;
    };
    const auto hidden = number("hidden_size"), heads = number("num_attention_heads");
    if (hidden && launched("swiglu") == true) {
      follow("ffn_hidden_size", static_cast<uint64_t>(4 * *hidden * 2 / 3 / 64) * 64);
    } else if (hidden) {
      follow("ffn_hidden_size", static_cast<uint64_t>(4 * *hidden));
    }
    if (hidden && heads && *heads > 0) {
      follow("kv_channels", static_cast<uint64_t>(*hidden / *heads));
    }
    if (!launched("num_experts").is_null())
      follow("moe_ffn_hidden_size", launched("ffn_hidden_size"));
    if (launched("train_samples").is_null()) follow("lr_decay_iters", launched("train_iters"));
    if (launched("weight_decay_incr_style") == "constant") {
      launched_["start_weight_decay"] = launched_["end_weight_decay"] = launched("weight_decay");
    }
    const json stored_tp = stored_.value("tensor_model_parallel_size", json());
    const json stored_etp = stored_.value("expert_tensor_parallel_size", json());
    const bool follows = stored_tp == stored_etp;  // so it does after --use-checkpoint-args, too
    follow("expert_tensor_parallel_size",
           follows ? stored_etp : launched("tensor_model_parallel_size"));
    if (launched("bf16") == true && launched("grad_reduce_in_bf16") != true) {
      launched_["accumulate_allreduce_grads_in_fp32"] = true;
    }
    if (launched("add_bias_linear") == true) launched_["add_qkv_bias"] = true;
    name_optimizer();
  }

  // How many there are: of each head without --group-query-attention, whatever the number says.
  void compare_groups() {
    const auto groups = [](const auto& get) {
      const json uses = value_of(get("group_query_attention"));
      return value_of(get(uses == true ? "num_query_groups" : "num_attention_heads"));
    };
    const json now = groups([&](const char* argument) { return launched(argument); });
    const json old = groups([&](const char* argument) { return stored_.value(argument, json()); });
    if (!is_same(old, now)) set("num_query_groups", now);
  }

  // dist_muon has had other names; facts of a LayerWise checkpoint have that one.
  void name_optimizer() {
    const json optimizer = launched("optimizer");
    if (!optimizer.is_string() || !is_layer_wise_) return;
    const auto& name = optimizer.get_ref<const std::string&>();
    const bool is_dealt = run_.tree >= MegatronTree::April2026 && name != "adam" && name != "sgd" &&
                          !name.starts_with("dist_") &&
                          (launched("use_distributed_optimizer") == true ||
                           is_on(launch_.printed, "use_layer_wise_distributed_optimizer"));
    if (!is_dealt) return;
    launched_["optimizer"] = "dist_" + name;
    launched_["use_distributed_optimizer"] =
        stored_.value("use_distributed_optimizer", json(false));
  }

  static bool is_on(const json& values, std::string_view name) {
    const auto found = values.find(name);
    return found != values.end() && !is_off(*found);
  }

  bool is_read(const std::string& argument) const {
    return std::ranges::none_of(kOnlyWith, [&](const OnlyWith& row) {
      return argument.starts_with(row.front) && !is_on(launched_, row.needs) &&
             !is_on(stored_, row.needs);
    });
  }

  // The checkpoint's value, by any name that the argument has had; nothing where it has none.
  std::optional<json> stored_value(const MegatronOption& option) const {
    for (const std::string_view called : option.arguments) {
      const auto found = stored_.find(called);
      if (found != stored_.end()) return *found;
    }
    return std::nullopt;
  }

  void compare(const MegatronOption& option) {
    const std::string argument(option.argument), name = name_of(option);
    const auto launched = launched_.find(argument);
    if (launched == launched_.end() || run_.changes.contains(name)) return;
    if (!is_read(argument)) return;
    if (is_of_chunks(argument)) return compare_chunks();
    if (argument == "group_query_attention" || argument == "num_query_groups") {
      return compare_groups();
    }
    const bool is_given = given_.contains(argument) || launch_.is_printed;
    const bool is_derived = std::ranges::count(split(kDerived, " "), argument) > 0;
    if (is_derived && (!is_given || launch_.is_printed)) return;
    const auto stored = stored_value(option);
    const bool is_told = effect_of(name) == Effect::Load && given_.contains(argument);
    const bool is_other =
        stored ? !is_same(*stored, *launched) : is_given && *launched != option.preset;
    if (!is_other && !is_told) return;
    const bool is_by_option = name != argument && option.kind == MegatronOption::Kind::False;
    set(name,
        is_by_option ? json(*launched == false || *launched == "False") : value_of(*launched));
  }

  // Printed values are texts.
  static json value_of(const json& launched) {
    if (!launched.is_string()) return launched;
    const auto& text = launched.get_ref<const std::string&>();
    if (text == "None") return nullptr;
    if (text == "True" || text == "False") return text == "True";
    const json number = json::parse(text, nullptr, false);
    return number.is_number() ? number : launched;
  }

  static bool is_of_chunks(const std::string& argument) {
    return argument == "num_virtual_stages_per_pipeline_rank" ||
           argument == "num_layers_per_virtual_pipeline_stage";
  }

  // Model chunks are told in either of two ways.
  void compare_chunks() {
    const auto size = [&](const char* argument) { return value_of(launched(argument)); };
    json chunks = size("num_virtual_stages_per_pipeline_rank");
    const json layers = size("num_layers"), each = size("num_layers_per_virtual_pipeline_stage"),
               stages = size("pipeline_model_parallel_size");
    const bool has_layers = layers.is_number_unsigned() && each.is_number_unsigned() &&
                            stages.is_number_unsigned() && each != 0U && stages != 0U;
    if (has_layers) {
      chunks = layers.get<uint64_t>() / stages.get<uint64_t>() / each.get<uint64_t>();
    }
    const json stored = stored_.value("virtual_pipeline_model_parallel_size", json());
    if (chunks != stored) set("num_virtual_stages_per_pipeline_rank", chunks);
  }

  const Launch& launch_;
  const json& stored_;
  bool is_layer_wise_;
  ResumeRun& run_;
  std::vector<MegatronOption> options_;
  json launched_ = json::object();
  std::set<std::string> given_;
};

}  // namespace

void add_launch(const Launch& launch, const ResumeFacts& checkpoint, ResumeRun& run) {
  Comparison(launch, checkpoint, run).compare();
}

}  // namespace tools::inspect
