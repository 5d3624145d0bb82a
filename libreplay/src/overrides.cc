#include <ckpt/error.h>
#include <optim/checkpoint_args.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "config/config_fields.h"
#include "group_settings.h"
#include "json_fields.h"
#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr const char* kEra = "emerging_optimizers";
constexpr const char* kArithmetic = "adam_arithmetic";

// Of the schedule, as Megatron's arguments call them; --lr, --min-lr and --weight-decay are of
// OptimizerConfig, too.
constexpr const char* kOfSchedule[] = {
    "lr_decay_style",          "lr_decay_iters",       "lr_decay_samples",   "lr_warmup_iters",
    "lr_warmup_samples",       "lr_warmup_fraction",   "lr_warmup_init",     "lr_wsd_decay_style",
    "lr_wsd_decay_iters",      "lr_wsd_decay_samples", "start_weight_decay", "end_weight_decay",
    "weight_decay_incr_style", "train_iters",          "train_samples",      "global_batch_size"};

// Of OptimizerConfig, what says which tensors there are and of which types; the checkpoint has
// them.
constexpr const char* kStored[] = {"fp16",
                                   "bf16",
                                   "params_dtype",
                                   "optimizer",
                                   "muon_scalar_optimizer",
                                   "use_precision_aware_optimizer",
                                   "store_param_remainders",
                                   "main_grads_dtype",
                                   "main_params_dtype",
                                   "exp_avg_dtype",
                                   "exp_avg_sq_dtype",
                                   "fp8_recipe",
                                   "reuse_grad_buf_for_mxfp8_param_ag",
                                   "apply_wd_to_qk_layernorm"};

std::vector<std::string> known_arguments() {
  std::vector<std::string> known = {kEra, kArithmetic};
  OptimizerConfig config;
  for_each_field(config, [&](const char* field, auto&) {
    if (std::ranges::find(kStored, std::string_view(field)) == std::end(kStored)) {
      known.emplace_back(field);
    }
  });
  known.insert(known.end(), std::begin(kOfSchedule), std::end(kOfSchedule));
  return known;
}

ckpt::NodeId add_scalar(ckpt::ValueTree& tree, const json& value) {
  if (value.is_null()) return tree.none();
  if (value.is_boolean()) return tree.boolean(value.get<bool>());
  if (value.is_number_integer()) return tree.integer(value.get<int64_t>());
  if (value.is_number()) return tree.real(value.get<double>());
  return tree.str(value.get<std::string>());
}

std::optional<int64_t> whole_or_none(const ckpt::Value& args, const char* argument) {
  const auto value = args.find(argument);
  if (!value || value->is_none()) return std::nullopt;
  return whole_field(args, argument);
}

// A length that --ARGUMENT-samples gives where the run was told how many samples to train on, else
// --ARGUMENT-iters.
std::optional<int64_t> length(const ckpt::Value& args, const std::string& argument,
                              int64_t increment) {
  if (whole_or_none(args, "train_samples")) {
    return whole_or_none(args, (argument + "_samples").c_str());
  }
  const auto iterations = whole_or_none(args, (argument + "_iters").c_str());
  return iterations ? std::optional(*iterations * increment) : std::nullopt;
}

// As get_optimizer_param_scheduler() of megatron/training/training.py makes it of arguments.
struct Schedule {
  const Overrides& overrides;
  const ckpt::Value& args;
  int64_t increment;

  void apply(SchedulerSettings& settings) const {
    number("lr", settings.max_lr);
    number("min_lr", settings.min_lr);
    text("lr_decay_style", settings.lr_decay_style);
    text("weight_decay_incr_style", settings.wd_incr_style);
    apply_lengths(settings);
    apply_decay(settings);
  }

  bool any(std::initializer_list<const char*> arguments) const {
    return std::ranges::any_of(arguments, [&](const char* one) { return overrides.has(one); });
  }
  void number(const char* argument, double& setting) const {
    if (overrides.has(argument)) setting = number_field(args, argument);
  }
  void text(const char* argument, std::string& setting) const {
    if (overrides.has(argument)) setting = args.at(argument).text();
  }

  void apply_lengths(SchedulerSettings& settings) const {
    const auto trained = length(args, "train", increment);
    if (any({"train_iters", "train_samples", "lr_decay_iters", "lr_decay_samples",
             "global_batch_size"})) {
      const auto decay = length(args, "lr_decay", increment);
      if (decay || trained) settings.lr_decay_steps = decay ? *decay : *trained;
      if (trained) settings.wd_incr_steps = *trained;
    }
    if (any({"lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction", "global_batch_size",
             "lr_decay_iters", "lr_decay_samples"})) {
      const auto fraction = args.find("lr_warmup_fraction");
      if (fraction && !fraction->is_none()) {
        const double share = number_field(args, "lr_warmup_fraction");
        settings.lr_warmup_steps =
            static_cast<int64_t>(share * static_cast<double>(settings.lr_decay_steps));
      } else if (const auto warmup = length(args, "lr_warmup", increment)) {
        settings.lr_warmup_steps = *warmup;
      }
    }
  }

  void apply_decay(SchedulerSettings& settings) const {
    if (overrides.has("weight_decay") && settings.wd_incr_style == "constant") {
      number("weight_decay", settings.start_wd);
      settings.end_wd = settings.start_wd;
    }
    number("start_weight_decay", settings.start_wd);
    number("end_weight_decay", settings.end_wd);
  }
};

}  // namespace

std::map<std::string, std::string> read_overrides(const std::filesystem::path& path) {
  const json file = read_json_file(path);
  if (!file.is_object()) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = path.string()},
                      "expected one JSON object of arguments");
  }
  std::map<std::string, std::string> overrides;
  for (const auto& [argument, value] : file.items()) overrides[argument] = value.dump();
  ckpt::within(path.string(), {}, [&] { const Overrides check(overrides); });
  return overrides;
}

Overrides::Overrides(const std::map<std::string, std::string>& given) : given_(given) {
  const std::vector<std::string> known = known_arguments();
  for (const auto& [argument, text] : given) {
    if (std::ranges::find(kStored, argument) != std::end(kStored)) {
      refuse_key(argument, "says what the checkpoint stores, which a replay cannot change");
    }
    if (std::ranges::find(known, argument) == known.end()) {
      refuse_key(argument, "is not an argument that decides a step");
    }
    const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool is_scalar = !value.is_discarded() && (value.is_primitive() && !value.is_binary());
    if (!is_scalar) refuse_key(argument, "expected a number, a text, true, false or null");
  }
  era();  // checks their words
  adam_arithmetic();
}

std::string Overrides::text_of(std::string_view argument) const {
  const auto found = given_.find(std::string(argument));
  if (found == given_.end()) return {};
  const json value = json::parse(found->second);
  return value.is_string() ? value.get<std::string>() : found->second;
}

std::optional<EmergingOptimizers> Overrides::era() const {
  const std::string text = text_of(kEra);
  if (text.empty()) return std::nullopt;
  if (const auto era = mode_named<EmergingOptimizers>(text)) return era;
  refuse_key(kEra, "expected \"0.2\" or \"0.3\"");
}

std::optional<AdamArithmetic> Overrides::adam_arithmetic() const {
  const std::string text = text_of(kArithmetic);
  if (text.empty()) return std::nullopt;
  if (const auto arithmetic = mode_named<AdamArithmetic>(text)) return arithmetic;
  refuse_key(kArithmetic,
             "expected \"torch\", \"fused_adam\", \"transformer_engine\" or \"fused\"");
}

void Overrides::apply_to_args(TrainingState& state) const {
  const ckpt::NodeId args = state.args().id();
  for (const auto& [argument, text] : given_) {
    if (argument == kEra || argument == kArithmetic) continue;
    ckpt::ValueTree& tree = state.common.tree;
    tree.put(args, argument, add_scalar(tree, json::parse(text)));
  }
  try {
    config_from_args(state.args());
  } catch (const ckpt::Error& error) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, error.where(), error.problem());
  }
}

void Overrides::apply_to_schedule(const ckpt::Value& args, int64_t increment,
                                  SchedulerSettings& settings) const {
  const bool counts_samples = whole_or_none(args, "train_samples").has_value();
  for (const std::string length : {"lr_decay", "lr_warmup", "lr_wsd_decay"}) {
    const std::string ignored = length + (counts_samples ? "_iters" : "_samples");
    if (!has(ignored)) continue;
    refuse_key(ignored, counts_samples ? "does not count in a run of train_samples"
                                       : "counts only in a run of train_samples");
  }
  Schedule{*this, args, increment}.apply(settings);
}

}  // namespace optim
