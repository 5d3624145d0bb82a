// A run's arguments beside a checkpoint's, and what each of them changes.
#include "inspect/load/resume_case.h"

#include <algorithm>
#include <map>

#include <ckpt/error.h>
#include <common/text.h>
#include <training/known_arguments.h>
#include <training/megatron_folders.h>
#include <training/repair.h>
#include <training/run_facts.h>
#include <training/size_change.h>

#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

constexpr std::string_view kTreeNames[kTrees] = {"0.15", "0.16", "0.17",    "0.18-dev",
                                                 "0.18", "0.19", "0.20-dev"};
// What the two main branches were called before.
constexpr std::pair<std::string_view, std::string_view> kOldNames[] = {{"2026-04", "0.18-dev"},
                                                                       {"2026-08", "0.20-dev"}};

struct ArgEffects {
  Effect effect;
  std::string_view names;
};

// Arguments that a load, or the optimizer's step, depends on. Of others the table of arguments
// tells whether a step depends on them. No load depends on: add_qkv_bias, since add_bias_linear
// decides; load, which is the checkpoint; pretrained_checkpoint, as the folder has a tracker.
// Gradients depend on the seed by the order of samples.
constexpr ArgEffects kEffects[] = {
    {Effect::None,
     "add_qkv_bias apply_wd_to_qk_layernorm ckpt_assume_constant_structure decoupled_lr "
     "dist_ckpt_optim_fully_reshardable exit_on_missing_checkpoint init_method_std "
     "initial_loss_scale load lr_warmup_init no_ckpt_fully_parallel_save "
     "num_distributed_optimizer_instances pretrained_checkpoint rerun_mode use_dist_ckpt"},
    {Effect::Size,
     "context_parallel_size expert_model_parallel_size expert_tensor_parallel_size "
     "num_virtual_stages_per_pipeline_rank pipeline_model_parallel_size "
     "tensor_model_parallel_size world_size"},
    {Effect::Load,
     "auto_detect_ckpt_format ckpt_format ckpt_fully_parallel_load ckpt_step "
     "data_parallel_random_init dist_ckpt_strictness finetune muon_tp_mode no_load_optim "
     "no_load_rng override_opt_param_scheduler use_checkpoint_args "
     "use_checkpoint_opt_param_scheduler use_mp_args_from_checkpoint_args"},
    {Effect::Scheduler,
     "end_weight_decay global_batch_size lr lr_decay_iters lr_decay_style lr_warmup_fraction "
     "lr_warmup_iters min_lr start_weight_decay train_iters train_samples weight_decay "
     "weight_decay_incr_style"},
    {Effect::Step,
     "clip_grad muon_extra_scale_factor muon_no_split_qkv muon_num_ns_steps muon_scale_mode "
     "muon_split_qkv"},
    {Effect::Overruled, "adam_beta1 adam_beta2 adam_eps muon_momentum"},
    {Effect::Gradients,
     "accumulate_allreduce_grads_in_fp32 attention_dropout hidden_dropout micro_batch_size "
     "moe_token_dispatcher_type no_rope_fusion norm_epsilon seed seq_length sequence_parallel "
     "squared_relu"},
    {Effect::Shape,
     "ffn_hidden_size hidden_size kv_channels max_position_embeddings moe_ffn_hidden_size "
     "num_attention_heads num_experts num_layers num_query_groups swiglu"},
    {Effect::AddsParams, "moe_layer_freq qk_layernorm"},
    {Effect::DropsParams,
     "disable_bias_linear normalization position_embedding_type "
     "untie_embeddings_and_output_weights"},
    {Effect::Buckets,
     "ddp_bucket_size ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw overlap_grad_reduce"},
    {Effect::Optimizer, "optimizer use_distributed_optimizer"},
    {Effect::Dtype, "bf16 fp16"},
};

// Of harmless arguments, by their first letters: how a run is watched, saved and ended, and what
// other programs than training do. The rest may choose between kernels that round otherwise.
constexpr std::string_view kBesideTheStep =
    "adlr_ app_tag_ async_ckpt_ async_save barrier_ biencoder_ check_ ckpt_ config_logger "
    "data_cache_path dino_ dist_ckpt_ distributed_timeout do_test do_valid dump_ enable_ft "
    "enable_one_logger error_injection eval_ exit_ export_ fault_injector filter_warnings "
    "flight_recorder ft_ full_validation gpu_sniff ict_ indexer_ inference_ inprocess_ "
    "iter_per_epoch lazy_mpu log_ logging_ logits_ manual_gc memory_ metadata_path mmap_bin "
    "moe_per_layer_logging non_persistent num_dataset_builder num_workers nvtx_ object_storage "
    "one_logger otel_ profile pytorch_profiler record_ recompute_ replication result_ retriever_ "
    "retro_ rl_ runtime_time s3_cache save start_eval straggler tensorboard_ test_ throughput "
    "timers timing_ titles_ trust_remote use_nsys use_persistent_ckpt use_pytorch_profiler "
    "valid_ vision_ wandb_";

// They change what is loaded, in ways for which there is no rule.
constexpr std::string_view kWithoutRule = "load_model_opt_format override_ckpt_iteration";

// What a step computes with, and no check of arguments looks at.
constexpr std::string_view kGivenToSteps =
    "data_ eod_mask_loss fim_ merge_file mock_data moe_aux_loss_coeff moe_z_loss_coeff "
    "mtp_loss_scaling per_split_data reset_attention reset_position split tokenizer_ "
    "train_data_path vocab_file";

bool begins_as(std::string_view name, std::string_view fronts) {
  return std::ranges::any_of(split(fronts, " "), [&](auto each) { return name.starts_with(each); });
}

std::optional<Effect> general_effect(std::string_view name) {
  const auto& rows = optim::known_arguments();
  const auto row = std::ranges::lower_bound(rows, name, {}, &optim::KnownArgument::name);
  if (row == rows.end() || row->name != name) return std::nullopt;
  const bool is_step = row->kind == optim::ArgumentClass::Step;
  if (is_step && begins_as(name, kGivenToSteps)) return Effect::Gradients;
  const bool is_harmless = row->kind == optim::ArgumentClass::Harmless;
  if (!is_harmless || begins_as(name, kWithoutRule)) return std::nullopt;
  return begins_as(name, kBesideTheStep) ? Effect::None : Effect::Gradients;
}

std::map<std::string_view, Effect> effects_by_name() {
  std::map<std::string_view, Effect> effects;
  for (const auto& [effect, names] : kEffects) {
    for (const std::string_view name : split(names, " ")) effects.emplace(name, effect);
  }
  return effects;
}

std::optional<Effect> own_effect(std::string_view name) {
  static const std::map<std::string_view, Effect> effects = effects_by_name();
  const auto found = effects.find(name);
  return found == effects.end() ? std::nullopt : std::optional(found->second);
}

nlohmann::json stated_args(const optim::OpenedTraining& checkpoint) {
  const optim::RunFacts facts = run_facts(checkpoint);
  if (!facts.args) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {}, "it has no arguments of a Megatron run",
                      "--expect-keys FILE asks for the tensors of a model instead");
  }
  return value_to_json(*facts.args);
}

// "muon" of a LayerWise optimizer is what the command line calls dist_muon.
void name_optimizer_as_typed(nlohmann::json& args, bool is_layer_wise) {
  const auto optimizer = args.find("optimizer");
  if (optimizer == args.end() || !optimizer->is_string() || !is_layer_wise) return;
  const auto& name = optimizer->get_ref<const std::string&>();
  if (!name.starts_with("dist_")) *optimizer = "dist_" + name;
}

bool has_file(const optim::OpenedTraining& checkpoint, std::string_view name) {
  return checkpoint.source().has(checkpoint.folder() / name);
}

// What torch.load(weights_only=True) is asked for.
void add_globals(const ckpt::Document& document, std::set<std::string>& names) {
  for (size_t i = 0; i < document.tree.node_count(); ++i) {
    const ckpt::Value value(document.tree, static_cast<ckpt::NodeId>(i));
    if (!value.is(ckpt::Kind::Global)) continue;
    names.insert(std::string(value.module()) + "." + std::string(value.name()));
  }
}

// The command that mends what its writer did wrong; empty: nothing, as far as is known.
std::string repair_of(const optim::OpenedTraining& checkpoint, const ResumeFacts& facts) {
  if (!facts.is_dist || !facts.is_zero1) return {};
  for (const optim::RepairFinding& found : optim::find_repairs(checkpoint.folder())) {
    if (found.verdict == optim::RepairFinding::Verdict::Sound) continue;
    return "ckpt-convert CKPT OUT --to torch_dist --repair " + std::string(name(found.kind));
  }
  return {};
}

bool has_float32_params(const optim::FiledState& state) {
  const auto is_own = [](const optim::TrainedParam& param) {
    return !param.master && !param.states.empty() && param.weight->dtype == ckpt::DType::Float32;
  };
  const auto is_half = [](const optim::TrainedParam& param) {
    return param.master && param.weight->dtype != ckpt::DType::Float32;
  };
  return std::ranges::any_of(state.params, is_own) && std::ranges::any_of(state.params, is_half);
}

bool has_random_states(const optim::OpenedTraining& checkpoint) {
  const auto is_one = [](const ckpt::ObjectEntry& object) {
    return object.key.find("rng_state") != object.key.npos;
  };
  const auto& tensors = checkpoint.catalog().tensors;
  return std::ranges::any_of(checkpoint.catalog().objects, is_one) ||
         std::ranges::any_of(tensors, [](const ckpt::TensorEntry& tensor) {
           return tensor.key.find("rng_state") != tensor.key.npos;
         });
}

}  // namespace

bool has_own_effect(std::string_view name) { return own_effect(name).has_value(); }

std::optional<Effect> effect_of(std::string_view name) {
  const auto effect = own_effect(name);
  return effect ? effect : general_effect(name);
}

std::string python_text(const json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

std::string unsupported_global(const ResumeCase& of) {
  struct Known {
    const char* name;
    MegatronTree since;
  };
  for (const auto& [name, since] :
       {Known{"megatron.core.transformer.enums.InferenceCudaGraphScope", MegatronTree::Core0182},
        Known{"signal.Signals", MegatronTree::Core0161}}) {
    if (of.facts.globals.contains(name) && of.tree < since) return name;
  }
  return {};
}

ResumeCertificate refusal(const ResumeCase& of, const Raised& raised, std::string message) {
  ResumeCertificate found{.verdict = ResumeVerdict::Refuses, .message = std::move(message)};
  const int line = raised.lines[static_cast<size_t>(of.tree)];
  found.place = std::string(raised.file);
  if (line != 0) found.place += ":" + std::to_string(line);
  return found;
}

ResumeCertificate not_known(std::string what) {
  return {.verdict = ResumeVerdict::NotKnown, .message = std::move(what)};
}

std::string option_list(const std::vector<std::string>& names) {
  std::string list = "--" + joined(names, ", --");
  std::ranges::replace(list, '_', '-');
  return list;
}

std::string_view name(MegatronTree tree) { return kTreeNames[static_cast<size_t>(tree)]; }

std::optional<MegatronTree> tree_named(std::string_view text) {
  for (const auto& [old_name, name] : kOldNames) {
    if (text == old_name) text = name;
  }
  const auto* const found = std::ranges::find(kTreeNames, text);
  if (found == std::end(kTreeNames)) return std::nullopt;
  return static_cast<MegatronTree>(found - std::begin(kTreeNames));
}

std::vector<std::string> tree_names() { return {std::begin(kTreeNames), std::end(kTreeNames)}; }

ResumeFacts resume_facts(const optim::OpenedTraining& checkpoint, const optim::FiledState& state) {
  ResumeFacts facts;
  facts.args = stated_args(checkpoint);
  const ckpt::Catalog& catalog = checkpoint.catalog();
  facts.is_dist = catalog.format == ckpt::Format::TorchDist;
  facts.iteration = catalog.iteration.value_or(0);
  facts.is_layer_wise = state.filed.is_layer_wise;
  facts.distributes_adam = state.filed.release->distributes_adam;
  facts.is_zero1 = state.filed.is_zero1();
  facts.is_fully_sharded = state.filed.is_fully_sharded;
  facts.has_float32_params = has_float32_params(state);
  facts.is_float32 = std::ranges::all_of(state.params, [](const optim::TrainedParam& param) {
    return param.weight->dtype == ckpt::DType::Float32;
  });
  facts.has_optimizer = !state.chain.empty();
  facts.has_random_states = has_random_states(checkpoint);
  facts.has_buckets = state.filed.has(optim::kBuckets);
  facts.has_ranges = state.filed.has(optim::kRanges);
  facts.has_gathered = state.filed.has(optim::kGathered);
  name_optimizer_as_typed(facts.args, facts.is_layer_wise);
  facts.is_release = state.folder_name == "release";
  facts.has_backend_file = has_file(checkpoint, optim::kMegatronFolders.backend_file);
  facts.mend = repair_of(checkpoint, facts);
  facts.has_common_file = false;
  for (const ckpt::FileEntry& file : catalog.files) {
    const bool is_common = file.path == optim::kMegatronFolders.common_file;
    facts.has_common_file = facts.has_common_file || is_common;
    const size_t slash = file.path.find('/');
    if (slash != file.path.npos) facts.rank_folders.insert(file.path.substr(0, slash));
    const bool is_read = is_common || file.path.ends_with("model_optim_rng.pt");
    const ckpt::Document* const document =
        is_read && facts.globals.empty() ? checkpoint.document(file.path) : nullptr;
    if (document != nullptr) add_globals(*document, facts.globals);
  }
  for (const ckpt::ObjectEntry& object : catalog.objects) {
    const bool is_rng = object.key.starts_with("rng_state/shard_");
    if (is_rng && std::ranges::count(object.key, '.') == 4) facts.has_rng_of_data_ranks = true;
  }
  return facts;
}

std::optional<optim::RunGrid> grid_of_run(const optim::FiledState& state, const ResumeRun& run) {
  if (!run.missing.empty()) return std::nullopt;
  for (const char* shape :
       {"num_attention_heads", "num_experts", "num_layers", "num_query_groups"}) {
    if (run.changes.contains(shape)) return std::nullopt;  // it is another model
  }
  optim::SizeChange change;
  for (const auto& [name, size] : kSizeArguments) {
    const auto found = run.changes.find(name);
    const bool is_size = found != run.changes.end() && found->is_number_unsigned();
    if (is_size) change.*size = found->get<uint32_t>();
  }
  if (change.empty()) return state.grid;
  if (!change.world_size) change.world_size = static_cast<uint32_t>(state.grid.sizes.world());
  return target_grid(state, change);
}

}  // namespace tools::inspect
