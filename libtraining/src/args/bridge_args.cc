// Source: megatron/bridge/training/config.py and models/*_provider.py of Megatron-Bridge 0.6.2;
// megatron/training/arguments.py for the same in Megatron-LM.
#include "args/bridge_args.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <ckpt/files_beside.h>
#include <training/known_arguments.h>

#include "args/common_state.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

using std::string_view;

// The first that has a field says it.
constexpr std::array<string_view, 8> kSections = {"model", "optimizer", "ddp",       "checkpoint",
                                                  "train", "scheduler", "tokenizer", "rng"};

// Fields of `model` that Megatron-LM calls otherwise.
constexpr std::pair<string_view, string_view> kRenamed[] = {
    {"num_moe_experts", "num_experts"},
    {"num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers"},
    {"num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers"}};
// Fields whose meaning is another argument's, see ArgsMaker.
constexpr string_view kTranslated[] = {"share_embeddings_and_output_weights",
                                       "transformer_layer_spec", "mamba_stack_spec",
                                       "make_vocab_size_divisible_by"};
// They build Megatron's own layers, as transformer_impl says.
constexpr string_view kOwnSpecs[] = {
    "megatron.bridge.models.gpt_provider.default_layer_spec",
    "megatron.bridge.models.gpt_provider.transformer_engine_layer_spec",
    "nemo.collections.llm.gpt.model.base.default_layer_spec",
    "nemo.collections.llm.gpt.model.base.transformer_engine_layer_spec",
    "nemo.collections.llm.t5.model.t5.default_layer_spec",
    "nemo.collections.llm.t5.model.t5.transformer_engine_layer_spec",
    "megatron.core.models.gpt.gpt_layer_specs.get_gpt_decoder_block_spec",
    "megatron.core.models.gpt.gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec"};
constexpr string_view kLocalSpecs[] = {
    "megatron.bridge.models.gpt_provider.local_layer_spec",
    "nemo.collections.llm.gpt.model.base.local_layer_spec",
    "nemo.collections.llm.t5.model.t5.local_layer_spec",
    "megatron.core.models.gpt.gpt_layer_specs.get_gpt_layer_local_spec"};

// Args that no field of the configuration states.
constexpr string_view kNotStated[] = {"data_parallel_size", "world_size", "padded_vocab_size",
                                      "transformer_impl"};

[[noreturn]] void refuse_config(const std::string& key, std::string problem, std::string hint = {},
                                const char* file = kBridgeConfig) {
  throw Error(ErrorCode::Unsupported, {file, std::nullopt, key}, std::move(problem),
              std::move(hint));
}

bool is_one_of(std::span<const string_view> names, string_view name) {
  return std::ranges::find(names, name) != names.end();
}

string_view name_in_config(string_view arg) {
  for (const auto& [field, renamed] : kRenamed) {
    if (renamed == arg) return field;
  }
  return arg;
}

std::optional<Value> field_of(const Value& config, string_view section, string_view name) {
  const auto fields = config.is(Kind::Dict) ? config.find(section) : std::nullopt;
  return fields && fields->is(Kind::Dict) ? fields->find(name) : std::nullopt;
}

string_view text_at(const Value& dict, string_view name) {
  const auto value = dict.is(Kind::Dict) ? dict.find(name) : std::nullopt;
  return value && value->is(Kind::Str) ? value->text() : string_view();
}

class ArgsMaker {
 public:
  // Of Bridge's model all fields, which may be of a provider that is not known.
  ArgsMaker(const Value& config, ArgsOf whose)
      : config_(config), of_model_(whose == ArgsOf::Bridge), args_(tree_.dict()) {}

  ValueTree run() {
    for (const string_view section : kSections) add_section(section);
    for (const auto& [field, arg] : kRenamed) {
      if (const auto value = of_model(field)) tree_.put(args_, arg, node_of(*value));
    }
    add_vocabulary();
    add_attention();
    add_layers();
    const NodeId space = tree_.object(ckpt::Construction::Reduce,
                                      tree_.global("argparse", "Namespace"), tree_.tuple());
    tree_.set_state(space, args_);
    const NodeId root = tree_.dict();
    tree_.put(root, "args", space);
    tree_.set_root(root);
    return std::move(tree_);
  }

 private:
  std::optional<Value> of_model(string_view name) const { return field_of(config_, "model", name); }
  bool is_true(string_view name) const {
    const auto value = of_model(name);
    return value && value->is(Kind::Bool) && value->as_bool();
  }
  void put_flag(string_view name, bool value) { tree_.put(args_, name, tree_.boolean(value)); }

  void add_section(string_view section) {
    const auto fields = config_.find(section);
    if (!fields || !fields->is(Kind::Dict)) return;
    for (const auto& [key, value] : ckpt::items_of(*fields)) {
      if (!key.is(Kind::Str) || key.text() == "_target_") continue;
      const string_view name = key.text();
      const bool is_meant = (of_model_ && section == "model") || is_known_argument(name);
      const bool is_translated =
          is_one_of(kTranslated, name) ||
          std::ranges::find(kRenamed, name, &std::pair<string_view, string_view>::first) !=
              std::end(kRenamed);
      if (!is_meant || is_translated || tree_.value(args_).find(name)) continue;
      tree_.put(args_, name, node_of(value));
    }
  }

  // What an object is called: torch.float32, an enumeration's member, a function.
  NodeId node_of(const Value& value) {
    const string_view target = text_at(value, "_target_");
    constexpr string_view kTorch = "torch.";
    const bool is_dtype = target.starts_with(kTorch) &&
                          target.find('.', kTorch.size()) == target.npos && value.find("_call_");
    if (is_dtype) return tree_.global("torch", target.substr(kTorch.size()));
    if (const string_view member = text_at(value, "_name_"); !member.empty()) {
      return tree_.str(member);
    }
    return target.empty() ? tree_.copy(value) : tree_.str(target);
  }

  // Where the model is not padded, its rows are its tokens; where that is not said, the rows alone
  // tell. NeMo pads by 128 and the tensor-parallel size unless a number is given.
  void add_vocabulary() {
    if (const auto tied = of_model("share_embeddings_and_output_weights")) {
      put_flag("untie_embeddings_and_output_weights", tied->is(Kind::Bool) && !tied->as_bool());
    }
    const auto divisor = of_model("make_vocab_size_divisible_by");
    const auto tokens = of_model("vocab_size");
    const bool is_preset = !of_model_ && tokens && tokens->is(Kind::Int);
    const bool is_padded = of_model_ ? is_true("should_pad_vocab") : !is_preset;
    if (of_model_ ? !of_model("should_pad_vocab") || !divisor : !is_preset) {
      tree_.erase(args_, "vocab_size");
      if (of_model_) return;
    }
    const NodeId stated = divisor ? tree_.copy(*divisor) : tree_.integer(128);
    tree_.put(args_, "make_vocab_size_divisible_by", is_padded ? stated : tree_.integer(1));
  }

  void add_attention() {
    const auto groups = of_model("num_query_groups");
    put_flag("group_query_attention", groups && groups->is(Kind::Int));
    if (!is_true("gated_linear_unit")) return;
    const auto function = of_model("activation_func");
    const string_view name = function ? text_at(*function, "_target_") : string_view();
    if (name.ends_with(".silu")) put_flag("swiglu", true);
    if (name.ends_with(".quick_gelu")) put_flag("quick_geglu", true);
  }

  void add_layers() {
    for (const string_view name : {"transformer_layer_spec", "mamba_stack_spec"}) {
      const auto spec = of_model(name);
      if (!spec || spec->is_none()) continue;
      const string_view target = text_at(*spec, "_target_");
      if (is_one_of(kLocalSpecs, target)) {
        tree_.put(args_, "transformer_impl", tree_.str("local"));
      } else if (!is_one_of(kOwnSpecs, target)) {
        add_own_spec(target);
      }
    }
    if (!tree_.value(args_).find("transformer_impl")) {  // the default of TransformerConfig
      tree_.put(args_, "transformer_impl", tree_.str("transformer_engine"));
    }
  }

  // As --spec has it: a module, and what it is called there.
  void add_own_spec(string_view target) {
    const size_t dot = std::min(target.rfind('.'), target.size());
    const NodeId list = tree_.list({tree_.str(target.substr(0, dot)),
                                    tree_.str(target.substr(std::min(dot + 1, target.size())))});
    tree_.put(args_, "spec", list);
  }

  const Value& config_;
  bool of_model_;
  ValueTree tree_;
  NodeId args_;
};

// As YAML has a plain value; nullopt: it is none.
std::optional<std::string> plain_text_of(const Value& value) {
  switch (value.kind()) {
    case Kind::None: return "null";
    case Kind::Bool: return value.as_bool() ? "true" : "false";
    case Kind::Int: return std::to_string(value.as_int());
    case Kind::Str: break;
    default: return std::nullopt;
  }
  std::string text = "'";
  for (const char c : value.text()) text += c == '\'' ? "''" : std::string(1, c);
  return text + "'";
}

// The section that has a field; "model" where none has.
string_view section_of(const Value& config, string_view name) {
  for (const string_view section : kSections) {
    if (field_of(config, section, name)) return section;
  }
  return "model";
}

// Sets a field of a section, a line each.
void set_line(std::string& config, string_view section, const std::string& line) {
  const std::string head = std::string(section) + ":\n";
  size_t at = config.starts_with(head) ? 0 : config.find("\n" + head);
  if (at == config.npos) refuse_config(std::string(section), "is not there");
  at = config.find('\n', at + (at == 0 ? 0 : 1)) + 1;
  const std::string field = line.substr(0, line.find(':') + 1);
  for (size_t next = at; config.compare(next, 2, "  ") == 0;) {
    const size_t end = std::min(config.find('\n', next), config.size());
    if (config.compare(next, field.size(), field) == 0) {
      config.replace(next, end - next, line);
      return;
    }
    next = std::min(end + 1, config.size());
  }
  config.insert(at, line + "\n");
}

bool is_same_plain(const Value& a, const Value& b) {
  if (a.is(Kind::Global) && b.is(Kind::Global)) return a.name() == b.name();
  const auto one = plain_text_of(a), other = plain_text_of(b);
  return one && one == other;
}

// Every rank writes a file where saves are parallel, which is the default; less is not known.
int64_t data_parallel_size(const Value& args, const ckpt::Catalog& catalog) {
  int64_t ranks = 1, model_ranks = 1;
  for (const ckpt::FileEntry& file : catalog.files) {
    const auto writer = writer_of(file.path);
    if (writer) ranks = std::max(ranks, int64_t{*writer} + 1);
  }
  for (const string_view name :
       {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"}) {
    const auto size = args.find(name);
    const bool is_size = size && size->is(Kind::Int) && size->as_int() > 0;
    if (is_size && size->as_int() <= ranks) model_ranks *= size->as_int();
  }
  return model_ranks <= ranks && ranks % model_ranks == 0 ? ranks / model_ranks : 1;
}

// Local layers file the norm before experts under the name that others give to the norm in the
// first matrix: a configuration may name a function that makes either.
bool has_local_layers(const ckpt::Catalog& catalog) {
  constexpr string_view kNorm = "mlp.linear_fc1.layer_norm_weight";
  return std::ranges::any_of(catalog.tensors, [&](const TensorEntry& tensor) {
    if (!tensor.key.ends_with(kNorm) || tensor.key.starts_with("optimizer.")) return false;
    const std::string front = tensor.key.substr(0, tensor.key.size() - kNorm.size());
    return catalog.find_tensor(front + "mlp.linear_fc1.weight") == nullptr &&
           catalog.find_tensor(front + "mlp.router.weight") != nullptr;
  });
}

// Beside what the configuration states: what only the store tells.
ValueTree args_in_store(const Value& config, ArgsOf whose, const ckpt::Catalog& catalog) {
  ValueTree args = ArgsMaker(config, whose).run();
  const Value stated = *args.root().find("args")->state();
  args.put(stated.id(), "data_parallel_size", args.integer(data_parallel_size(stated, catalog)));
  if (has_local_layers(catalog)) args.put(stated.id(), "transformer_impl", args.str("local"));
  return args;
}

// By whom flat state is dealt, no configuration says.
void refuse_dealt(const std::string& sharding, const std::string& key, const char* hint,
                  const char* file) {
  if (sharding.empty() || sharding.starts_with("fully_")) return;
  refuse_config(key,
                "does not say how many data-parallel ranks there are, by which the " +
                    ckpt::escaped(sharding) + " state is dealt",
                hint, file);
}

const char* file_of(ArgsOf whose) { return whose == ArgsOf::Bridge ? kBridgeConfig : kNemoConfig; }

// NeMo's model and optimizer as Bridge's.
ValueTree sections_of(const std::string& config, ArgsOf whose) {
  ValueTree tree = ckpt::read_yaml(config, file_of(whose));
  if (whose == ArgsOf::Bridge) return tree;
  ValueTree sections;
  sections.set_root(sections.dict());
  const NodeId root = sections.root().id();
  if (const auto model = tree.root().find("config")) {
    sections.put(root, "model", sections.copy(*model));
  }
  if (const auto optimizer = field_of(tree.root(), "optim", "config")) {
    sections.put(root, "optimizer", sections.copy(*optimizer));
  }
  return sections;
}

// What no line of a configuration says, and no size changes.
bool is_not_stated(string_view arg, ArgsOf whose) {
  const bool is_of_recipe = arg == "use_distributed_optimizer" || arg == "optimizer";
  return is_one_of(kNotStated, arg) || (whose != ArgsOf::Bridge && is_of_recipe);
}

std::string with_args(const std::string& config, const Value& args, ArgsOf whose) {
  const ValueTree tree = sections_of(config, whose);
  const ValueTree before_tree = ArgsMaker(tree.root(), whose).run();
  const Value before = *before_tree.root().find("args")->state();
  std::string text = config;
  for (const auto& [key, value] : ckpt::items_of(args)) {
    const auto old = before.find(key.text());
    if (is_not_stated(key.text(), whose) || (old && is_same_plain(*old, value))) continue;
    const auto changed = plain_text_of(value);
    if (!changed) {
      if (old) continue;  // a list or an object, which no size changes
      refuse_config(std::string(key.text()), "has no place in this configuration", {},
                    file_of(whose));
    }
    const string_view field = name_in_config(key.text());
    const string_view section = section_of(tree.root(), field);
    set_line(text, whose == ArgsOf::Bridge ? section : string_view("config"),
             "  " + std::string(field) + ": " + *changed);
  }
  const ValueTree made = sections_of(text, whose);
  const ValueTree after = ArgsMaker(made.root(), whose).run();
  const Value found = *after.root().find("args")->state();
  for (const auto& [key, value] : ckpt::items_of(args)) {
    const auto written = found.find(key.text());
    const bool is_plain = plain_text_of(value).has_value();
    if (is_not_stated(key.text(), whose) || !is_plain) continue;
    if (!written || !is_same_plain(*written, value)) {
      refuse_config(std::string(key.text()), "cannot be set in this configuration", {},
                    file_of(whose));
    }
  }
  return text;
}

}  // namespace

std::string bridge_config(const OpenedTraining& checkpoint) {
  std::string text = ckpt::text_beside(checkpoint, kBridgeConfig);
  return text.find("megatron.bridge.") == text.npos ? std::string() : text;
}

ValueTree args_of_bridge(const std::string& config, const Value& common_root,
                         const ckpt::Catalog& catalog) {
  refuse_dealt(stated_sharding(common_root), "optimizer",
               "Bridge saves fully_reshardable state, which needs none, with "
               "checkpoint.dist_ckpt_optim_fully_reshardable",
               kBridgeConfig);
  const ValueTree tree = ckpt::read_yaml(config, kBridgeConfig);
  if (!field_of(tree.root(), "model", "num_layers")) {
    refuse_config("model", "states no number of layers");
  }
  return args_in_store(tree.root(), ArgsOf::Bridge, catalog);
}

// Of the optimizer nothing is stated where a recipe gave it to the run.
ValueTree args_of_nemo(const std::string& config, const std::string& sharding,
                       const ckpt::Catalog& catalog) {
  refuse_dealt(sharding, "optim",
               "NeMo saves fully_sharded_model_space state, which needs none, with "
               "ckpt_parallel_save_optim",
               kNemoConfig);
  const ValueTree sections = sections_of(config, ArgsOf::MegatronLm);
  for (const char* const field : {"num_layers", "hidden_size", "num_attention_heads"}) {
    const auto value = field_of(sections.root(), "model", field);
    if (value && value->is(Kind::Int)) continue;
    refuse_config(std::string("config.") + field, "is missing, or no number", {}, kNemoConfig);
  }
  ValueTree args = args_in_store(sections.root(), ArgsOf::MegatronLm, catalog);
  const NodeId stated = args.root().find("args")->state()->id();
  args.put(stated, "use_distributed_optimizer", args.boolean(!sharding.empty()));
  if (!args.value(stated).find("optimizer")) args.put(stated, "optimizer", args.str("adam"));
  return args;
}

std::string config_with_args(const std::string& config, const Value& args) {
  return with_args(config, args, ArgsOf::Bridge);
}

std::string nemo_config_with_args(const std::string& config, const Value& args) {
  return with_args(config, args, ArgsOf::MegatronLm);
}

}  // namespace optim
