// A run's arguments beside a checkpoint's, and what each of them changes.
#include "inspect/load/resume_case.h"

#include <algorithm>

#include <ckpt/error.h>
#include <training/known_arguments.h>
#include <training/layer_wise_checkpoint.h>
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

struct ArgEffect {
  std::string_view name;
  Effect effect;
};

// Arguments that a load, or the optimizer's step, depends on. Of others the table of arguments
// tells whether a step depends on them.
constexpr ArgEffect kEffects[] = {
    {"accumulate_allreduce_grads_in_fp32", Effect::Gradients},
    {"adam_beta1", Effect::Overruled},
    {"adam_beta2", Effect::Overruled},
    {"adam_eps", Effect::Overruled},
    {"add_qkv_bias", Effect::None},  // add_bias_linear is what decides
    {"apply_wd_to_qk_layernorm", Effect::None},
    {"attention_dropout", Effect::Gradients},
    {"auto_detect_ckpt_format", Effect::Load},
    {"bf16", Effect::Dtype},
    {"ckpt_assume_constant_structure", Effect::None},
    {"ckpt_format", Effect::Load},
    {"ckpt_fully_parallel_load", Effect::Load},
    {"ckpt_step", Effect::Load},
    {"clip_grad", Effect::Step},
    {"context_parallel_size", Effect::Size},
    {"data_parallel_random_init", Effect::Load},
    {"ddp_bucket_size", Effect::Buckets},
    {"ddp_num_buckets", Effect::Buckets},
    {"ddp_pad_buckets_for_high_nccl_busbw", Effect::Buckets},
    {"decoupled_lr", Effect::None},
    {"disable_bias_linear", Effect::DropsParams},
    {"dist_ckpt_optim_fully_reshardable", Effect::None},
    {"dist_ckpt_strictness", Effect::Load},
    {"end_weight_decay", Effect::Scheduler},
    {"exit_on_missing_checkpoint", Effect::None},
    {"expert_model_parallel_size", Effect::Size},
    {"expert_tensor_parallel_size", Effect::Size},
    {"ffn_hidden_size", Effect::Shape},
    {"finetune", Effect::Load},
    {"fp16", Effect::Dtype},
    {"global_batch_size", Effect::Scheduler},
    {"hidden_dropout", Effect::Gradients},
    {"hidden_size", Effect::Shape},
    {"init_method_std", Effect::None},
    {"initial_loss_scale", Effect::None},
    {"kv_channels", Effect::Shape},
    {"load", Effect::None},  // it is the checkpoint
    {"lr", Effect::Scheduler},
    {"lr_decay_iters", Effect::Scheduler},
    {"lr_decay_style", Effect::Scheduler},
    {"lr_warmup_fraction", Effect::Scheduler},
    {"lr_warmup_init", Effect::None},
    {"lr_warmup_iters", Effect::Scheduler},
    {"max_position_embeddings", Effect::Shape},
    {"micro_batch_size", Effect::Gradients},
    {"min_lr", Effect::Scheduler},
    {"moe_ffn_hidden_size", Effect::Shape},
    {"moe_layer_freq", Effect::AddsParams},
    {"moe_token_dispatcher_type", Effect::Gradients},
    {"muon_extra_scale_factor", Effect::Step},
    {"muon_momentum", Effect::Overruled},
    {"muon_no_split_qkv", Effect::Step},
    {"muon_num_ns_steps", Effect::Step},
    {"muon_scale_mode", Effect::Step},
    {"muon_split_qkv", Effect::Step},
    {"muon_tp_mode", Effect::Load},
    {"no_ckpt_fully_parallel_save", Effect::None},
    {"no_load_optim", Effect::Load},
    {"no_load_rng", Effect::Load},
    {"no_rope_fusion", Effect::Gradients},
    {"norm_epsilon", Effect::Gradients},
    {"normalization", Effect::DropsParams},
    {"num_attention_heads", Effect::Shape},
    {"num_distributed_optimizer_instances", Effect::None},
    {"num_experts", Effect::Shape},
    {"num_layers", Effect::Shape},
    {"num_query_groups", Effect::Shape},
    {"num_virtual_stages_per_pipeline_rank", Effect::Size},
    {"optimizer", Effect::Optimizer},
    {"overlap_grad_reduce", Effect::Buckets},
    {"override_opt_param_scheduler", Effect::Load},
    {"pipeline_model_parallel_size", Effect::Size},
    {"position_embedding_type", Effect::DropsParams},
    {"pretrained_checkpoint", Effect::None},  // as the folder has a tracker
    {"qk_layernorm", Effect::AddsParams},
    {"rerun_mode", Effect::None},
    {"seed", Effect::Gradients},  // by the order of samples
    {"seq_length", Effect::Gradients},
    {"sequence_parallel", Effect::Gradients},
    {"squared_relu", Effect::Gradients},
    {"start_weight_decay", Effect::Scheduler},
    {"swiglu", Effect::Shape},
    {"tensor_model_parallel_size", Effect::Size},
    {"train_iters", Effect::Scheduler},
    {"train_samples", Effect::Scheduler},
    {"untie_embeddings_and_output_weights", Effect::DropsParams},
    {"use_checkpoint_args", Effect::Load},
    {"use_checkpoint_opt_param_scheduler", Effect::Load},
    {"use_dist_ckpt", Effect::None},
    {"use_distributed_optimizer", Effect::Optimizer},
    {"use_mp_args_from_checkpoint_args", Effect::Load},
    {"weight_decay", Effect::Scheduler},
    {"weight_decay_incr_style", Effect::Scheduler},
    {"world_size", Effect::Size},
};
static_assert(std::ranges::is_sorted(kEffects, {}, &ArgEffect::name));

// Of harmless arguments, by their first letters: how a run is watched, saved and ended, and what
// other programs than training do. The rest may choose between kernels that round otherwise.
constexpr std::string_view kBesideTheStep[] = {"adlr_",
                                               "app_tag_",
                                               "async_ckpt_",
                                               "async_save",
                                               "barrier_",
                                               "biencoder_",
                                               "check_",
                                               "ckpt_",
                                               "config_logger",
                                               "data_cache_path",
                                               "dino_",
                                               "dist_ckpt_",
                                               "distributed_timeout",
                                               "do_test",
                                               "do_valid",
                                               "dump_",
                                               "enable_ft",
                                               "enable_one_logger",
                                               "error_injection",
                                               "eval_",
                                               "exit_",
                                               "export_",
                                               "fault_injector",
                                               "filter_warnings",
                                               "flight_recorder",
                                               "ft_",
                                               "full_validation",
                                               "gpu_sniff",
                                               "ict_",
                                               "indexer_",
                                               "inference_",
                                               "inprocess_",
                                               "iter_per_epoch",
                                               "lazy_mpu",
                                               "log_",
                                               "logging_",
                                               "logits_",
                                               "manual_gc",
                                               "memory_",
                                               "metadata_path",
                                               "mmap_bin",
                                               "moe_per_layer_logging",
                                               "non_persistent",
                                               "num_dataset_builder",
                                               "num_workers",
                                               "nvtx_",
                                               "object_storage",
                                               "one_logger",
                                               "otel_",
                                               "profile",
                                               "pytorch_profiler",
                                               "record_",
                                               "recompute_",
                                               "replication",
                                               "result_",
                                               "retriever_",
                                               "retro_",
                                               "rl_",
                                               "runtime_time",
                                               "s3_cache",
                                               "save",
                                               "start_eval",
                                               "straggler",
                                               "tensorboard_",
                                               "test_",
                                               "throughput",
                                               "timers",
                                               "timing_",
                                               "titles_",
                                               "trust_remote",
                                               "use_nsys",
                                               "use_persistent_ckpt",
                                               "use_pytorch_profiler",
                                               "valid_",
                                               "vision_",
                                               "wandb_"};

// They change what is loaded, in ways for which there is no rule.
constexpr std::string_view kWithoutRule[] = {"load_model_opt_format", "override_ckpt_iteration"};

// What a step computes with, and no check of arguments looks at.
constexpr std::string_view kGivenToSteps[] = {"data_",
                                              "eod_mask_loss",
                                              "fim_",
                                              "merge_file",
                                              "mock_data",
                                              "moe_aux_loss_coeff",
                                              "moe_z_loss_coeff",
                                              "mtp_loss_scaling",
                                              "per_split_data",
                                              "reset_attention",
                                              "reset_position",
                                              "split",
                                              "tokenizer_",
                                              "train_data_path",
                                              "vocab_file"};

bool begins_as(std::string_view name, std::span<const std::string_view> fronts) {
  return std::ranges::any_of(fronts, [&](auto front) { return name.starts_with(front); });
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

const ArgEffect* row_of(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kEffects, name, {}, &ArgEffect::name);
  return found != std::end(kEffects) && found->name == name ? found : nullptr;
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

}  // namespace

bool has_own_effect(std::string_view name) { return row_of(name) != nullptr; }

std::optional<Effect> effect_of(std::string_view name) {
  const ArgEffect* const row = row_of(name);
  return row != nullptr ? row->effect : general_effect(name);
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
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "--" : ", --") + name;
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
  const auto set = [&](const char* name, std::optional<uint32_t>& size) {
    const auto found = run.changes.find(name);
    const bool is_size = found != run.changes.end() && found->is_number_unsigned();
    if (is_size) size = found->get<uint32_t>();
  };
  set("tensor_model_parallel_size", change.tensor_parallel);
  set("pipeline_model_parallel_size", change.pipeline_parallel);
  set("num_virtual_stages_per_pipeline_rank", change.virtual_pipeline_parallel);
  set("context_parallel_size", change.context_parallel);
  set("expert_model_parallel_size", change.expert_parallel);
  set("expert_tensor_parallel_size", change.expert_tensor_parallel);
  set("world_size", change.world_size);
  if (change.empty()) return state.grid;
  if (!change.world_size) change.world_size = static_cast<uint32_t>(state.grid.sizes.world());
  return target_grid(state, change);
}

}  // namespace tools::inspect
