// What load_checkpoint does with a torch_dist folder, and with a folder of ranks' files, in its
// order.
#include <algorithm>

#include "inspect/load/resume_case.h"

namespace tools::inspect {
namespace {

using enum MegatronTree;

constexpr Raised kTpPpMismatch = {kLoading, {1434, 1599, 1708, 1684, 1733, 2251, 2654}};
constexpr Raised kNotDetected = {kLoading, {987, 1117, 1196, 1173, 1233, 1570, 1928}};
constexpr Raised kNoCommonFile = {"megatron/core/dist_checkpointing/strategies/common.py",
                                  {96, 96, 56, 56, 56, 0, 0}};
constexpr Raised kCommonFileRead = {"megatron/core/dist_checkpointing/strategies/common.py",
                                    {89, 89, 47, 47, 0, 0, 0}};
constexpr Raised kFlattened = {"megatron/core/dist_checkpointing/mapping.py",
                               {0, 134, 134, 134, 134, 134, 130}};
constexpr Raised kPlanned = {"megatron/core/dist_checkpointing/strategies/torch.py",
                             {618, 518, 515, 528, 516, 534, 517}};
constexpr Raised kNoKey = {"megatron/core/dist_checkpointing/strategies/torch.py",
                           {600, 506, 503, 516, 504, 522, 505}};
constexpr Raised kMerged = {"megatron/core/dist_checkpointing/dict_utils.py",
                            {230, 230, 230, 230, 230, 230, 180}};

// What a run under FSDP saved. Under FSDP2 Megatron loads nothing of it, its own neither.
RuleAnswer fsdp_is_loaded(const ResumeCase& of) {
  if (!of.facts.is_fully_sharded) return std::nullopt;
  if (of.now("ckpt_format") == "torch_dcp") {
    return refusal(of, {kLoading, {1486, 1660, 1767, 1745, 1794, 2339, 2742}},
                   "TypeError: ChainedOptimizer.state_dict() got an unexpected keyword argument "
                   "'is_loading'");
  }
  return not_known("how a run loads what one under FSDP saved as " +
                   python_text(of.old("ckpt_format")));
}

RuleAnswer format_is_detected(const ResumeCase& of) {
  if (of.now("ckpt_format") != "torch") return std::nullopt;
  if (of.flag("auto_detect_ckpt_format")) return refusal(of, kNoModel, "KeyError: 'model'");
  return refusal(of, kNotDetected,
                 "RuntimeError: Detected load from a distributed checkpoint, but neither "
                 "--use-dist-ckpt nor --auto-detect-ckpt-format is set.");
}

RuleAnswer common_file_is_there(const ResumeCase& of) {
  if (of.facts.has_common_file || of.tree >= Core0190) return std::nullopt;
  if (of.tree <= Core0161) {
    return refusal(of, kNoCommonFile, "AttributeError: 'str' object has no attribute 'iterdir'");
  }
  return refusal(of, kNoCommonFile,
                 "CheckpointingException: Common file CKPT/common.pt does not exist");
}

RuleAnswer backend_file_is_there(const ResumeCase& of) {
  if (of.facts.has_backend_file) return std::nullopt;
  return refusal(of, {kLoading, {0, 0, 0, 1346, 0, 0, 0}},
                 "RuntimeError: Missing key in checkpoint state_dict: args.");
}

RuleAnswer common_file_can_be_read(const ResumeCase& of) {
  if (!of.facts.has_common_file) return std::nullopt;
  const std::string global = unsupported_global(of);
  if (global.empty()) return std::nullopt;
  if (of.tree == April2026) {  // which takes any class that it has
    return refusal(
        of, kCommonFileRead,
        "AttributeError: Can't get attribute '" + global.substr(global.rfind('.') + 1) + "'");
  }
  return refusal(of, kCommonFileRead, "UnpicklingError: Unsupported global: GLOBAL " + global);
}

constexpr Raised kMissingKey = {"megatron/core/dist_checkpointing/strategies/torch.py",
                                {0, 550, 547, 560, 548, 566, 0}};

RuleAnswer random_states_are_filed_alike(const ResumeCase& of) {
  if (!of.wants_random_numbers()) return std::nullopt;
  const bool wants_data_ranks = of.tree == Core0161 && of.ep() > 1;
  const bool are_other_ranks =
      wants_data_ranks && of.dp() * of.cp() != of.old_dp() * of.old_size("context_parallel_size");
  if (wants_data_ranks == of.facts.has_rng_of_data_ranks && !are_other_ranks) return std::nullopt;
  return refusal(
      of, kMissingKey,
      std::string("RuntimeError: Missing key in checkpoint state_dict: rng_state/shard_") +
          (wants_data_ranks ? "0.0.0_" : "0.0_"));
}

// Of a store that was saved without them a run with that option alone asks for none.
RuleAnswer extra_states_are_there(const ResumeCase& of) {
  constexpr std::string_view kOption = "ckpt_drop_redundant_extra_state";
  const json stored = of.old(kOption);
  const bool are_dropped = stored.is_boolean() && stored.get<bool>();
  if (!are_dropped || (of.tree == August2026 && of.is_on(kOption))) return std::nullopt;
  return refusal(of, kMissingKey, "RuntimeError: Missing key in checkpoint state_dict: ");
}

RuleAnswer strictness_allows(const ResumeCase& of) {
  const std::string strictness = python_text(of.now("dist_ckpt_strictness"));
  if (!of.is_other("dist_ckpt_strictness")) return std::nullopt;
  const Raised validated = {"megatron/core/dist_checkpointing/validation.py",
                            {0, 0, 0, 317, 0, 0, 0}};
  const bool leaves_keys = !of.wants_optimizer() || of.has(Effect::DropsParams);
  if (strictness == "raise_all" && leaves_keys) {
    return refusal(of, validated,
                   "CheckpointingException: Some keys found in the checkpoint are missing in the "
                   "provided sharded state dict.");
  }
  if (!of.has(Effect::AddsParams)) return std::nullopt;
  if (strictness.starts_with("raise_")) {
    return refusal(of, validated,
                   "CheckpointingException: Unexpected keys (not found in the checkpoint) "
                   "encountered in the provided sharded state dict.");
  }
  const bool drops_keys = strictness.starts_with("log_") || strictness == "ignore_all";
  if (!drops_keys || !of.wants_optimizer()) return std::nullopt;
  if (!of.facts.is_zero1) return not_known("how that optimizer takes parameters without state");
  return refusal(of, {"megatron/core/optimizer/distrib_optimizer.py", {0, 0, 0, 2112, 0, 0, 0}},
                 "KeyError: ");
}

RuleAnswer load_returns_the_state(const ResumeCase& of) {
  if (!of.is_other("dist_ckpt_strictness") ||
      !python_text(of.now("dist_ckpt_strictness")).starts_with("return_")) {
    return std::nullopt;
  }
  return refusal(of, {kLoading, {0, 0, 0, 1808, 0, 0, 0}},
                 "AttributeError: 'tuple' object has no attribute 'get'");
}

RuleAnswer sizes_fit_the_sharding(const ResumeCase& of) {
  const bool depends = of.facts.is_zero1 && (of.facts.has_buckets || of.facts.has_gathered);
  if (!depends || !of.wants_optimizer()) return std::nullopt;
  const std::string type = of.facts.has_buckets ? "dp_reshardable" : "dp_zero_gather_scatter";
  if (of.facts.has_gathered && of.flag("ckpt_fully_parallel_load")) {
    return refusal(of, {kLoading, {1440, 1605, 1714, 1690, 1739, 2264, 2667}},
                   "RuntimeError: Fully parallel load is not supported for " + type +
                       " checkpoints. Please remove --ckpt-fully-parallel-load flag");
  }
  if (!of.is_other_tp_or_pp()) return std::nullopt;
  const auto pair = [](uint64_t a, uint64_t b) {
    return "(" + std::to_string(a) + ", " + std::to_string(b) + ")";
  };
  return refusal(
      of, kTpPpMismatch,
      "RuntimeError: (TP, PP) mismatch after resume (" + pair(of.tp(), of.pp()) + " vs " +
          pair(of.old_size("tensor_model_parallel_size"),
               of.old_size("pipeline_model_parallel_size")) +
          " from checkpoint): not supported for DistributedOptimizer with sharding type " + type +
          ". Please use `--ckpt-fully-parallel-save` flag during checkpoint saving.");
}

RuleAnswer ranges_are_supported(const ResumeCase& of) {
  if (!of.wants_optimizer()) return std::nullopt;
  const bool is_unreadable = of.facts.has_ranges && of.tree >= Core0161;
  const bool becomes_zero1 =
      of.facts.is_layer_wise && of.is_other("optimizer") && of.is_on("use_distributed_optimizer");
  const bool is_halved = of.facts.is_layer_wise && !of.facts.distributes_adam;
  if (!is_unreadable && !becomes_zero1 && !(is_halved && of.tree >= Core0182)) {
    return std::nullopt;
  }
  return refusal(of, kFlattened,
                 "CheckpointingException: ShardedTensor.flattened_range is not supported.");
}

RuleAnswer dealt_experts_are_supported(const ResumeCase& of) {
  const bool is_dealt = of.facts.is_layer_wise && of.has_experts();
  if (!is_dealt || of.tree < Core0182 || of.ep() == 1 || of.facts.distributes_adam) {
    return std::nullopt;
  }
  return refusal(of, {"megatron/core/optimizer/__init__.py", {0, 0, 0, 0, 888, 914, 919}},
                 "AssertionError: Non-emerging expert-parallel param groups are not yet supported");
}

// Experts are filed apart where they are split over ranks.
RuleAnswer experts_have_the_same_keys(const ResumeCase& of) {
  if (!of.has_experts() || !of.wants_optimizer()) return std::nullopt;
  const bool has_other_groups = (of.tree == Core0161 || of.tree == Core0171) && of.ep() > 1;
  if (of.facts.is_layer_wise && (has_other_groups || of.splits_experts_otherwise())) {
    return refusal(of, kMerged, "ValueError: Cannot merge two lists with different lengths");
  }
  if (!of.splits_experts_otherwise()) return std::nullopt;
  if (of.facts.has_buckets) return refusal(of, kNoKey, "KeyError: \"optimizer.distributed.");
  if (!of.facts.is_zero1) return not_known("experts that one rank has, of that optimizer");
  return std::nullopt;
}

RuleAnswer experts_are_filed_alike(const ResumeCase& of) {
  const bool is_asked = of.facts.is_zero1 && of.wants_optimizer();
  if (!is_asked || !of.splits_experts_otherwise()) return std::nullopt;
  return of.ep() == 1 ? refusal(of,
                                {"megatron/core/optimizer/distrib_optimizer.py",
                                 {0, 755, 760, 755, 908, 962, 962}},
                                "KeyError: 'optimizer'")
                      : refusal(of,
                                {"megatron/core/optimizer/optimizer.py",
                                 {0, 0, 1231, 1237, 1264, 1579, 1611}},
                                "RuntimeError: Expected");
}

RuleAnswer model_fits_the_store(const ResumeCase& of) {
  if (of.tree == Core0153 && of.facts.has_ranges &&
      (of.has(Effect::Shape) || of.has(Effect::Optimizer))) {
    return not_known("how 0.15 takes fully_sharded state into another model");
  }
  const std::string strictness = python_text(of.now("dist_ckpt_strictness"));
  const bool drops_keys = strictness.starts_with("log_") || strictness.starts_with("return_") ||
                          strictness == "ignore_all";
  const bool adds_experts = of.is_other("num_experts") && !of.has_experts();
  const bool drops_experts = of.is_other("num_experts") && of.now("num_experts").is_null();
  if (adds_experts || drops_experts || (of.has(Effect::AddsParams) && !drops_keys)) {
    return refusal(of, kNoKey, "KeyError: \"decoder.layers.");
  }
  if (of.has(Effect::Shape)) {
    return refusal(of, kPlanned, "CheckpointingException: Global shape mismatch for loaded");
  }
  return std::nullopt;
}

RuleAnswer optimizer_is_the_same(const ResumeCase& of) {
  if (!of.has(Effect::Optimizer) || !of.wants_optimizer()) return std::nullopt;
  if (of.now("optimizer") == "sgd")
    return refusal(of, {"megatron/core/optimizer/optimizer.py", {0, 0, 0, 815, 0, 0, 0}},
                   "TypeError:");
  const bool is_undealt =
      of.facts.is_layer_wise && of.old("optimizer") == "dist_muon" && of.now("optimizer") == "muon";
  if (is_undealt) return std::nullopt;  // the same keys
  const bool is_other_kind = of.is_other("optimizer");
  if (!is_other_kind && of.facts.is_layer_wise) return std::nullopt;  // it never was one
  return refusal(of, kNoKey, "KeyError: \"");
}

RuleAnswer buckets_are_the_same(const ResumeCase& of) {
  if (!of.facts.has_buckets || !of.wants_optimizer()) return std::nullopt;
  if (of.has(Effect::Dtype)) return refusal(of, kNoKey, "KeyError: \"optimizer.distributed.");
  if (of.is_on("ddp_pad_buckets_for_high_nccl_busbw") &&
      of.is_other("ddp_pad_buckets_for_high_nccl_busbw")) {
    return not_known("buckets that are padded otherwise");
  }
  const bool has_default_size = of.is_on("overlap_grad_reduce") &&
                                of.now("ddp_bucket_size").is_null() && of.dp() != of.old_dp();
  const bool has_other_default =
      has_default_size && std::max<uint64_t>(40, of.dp()) != std::max<uint64_t>(40, of.old_dp());
  const bool is_other = of.is_other_tp_or_pp() || of.chunks() != of.old_chunks() ||
                        of.ep() != of.old_ep() || of.has(Effect::Buckets) ||
                        of.has(Effect::DropsParams) || has_other_default ||
                        of.is_other_size("expert_tensor_parallel_size");
  if (!is_other) return std::nullopt;
  return refusal(of, kPlanned, "CheckpointingException: Global shape mismatch for loaded");
}

constexpr ResumeRule kStoreRules[] = {
    fsdp_is_loaded,
    format_is_detected,
    backend_file_is_there,
    common_file_is_there,
    common_file_can_be_read,
    sizes_fit_the_sharding,
    dealt_experts_are_supported,
    ranges_are_supported,
    experts_have_the_same_keys,
    strictness_allows,
    model_fits_the_store,
    optimizer_is_the_same,
    buckets_are_the_same,
    random_states_are_filed_alike,
    extra_states_are_there,
    load_returns_the_state,
    arguments_are_the_same,
    experts_are_filed_alike,
    rates_of_groups_are_the_same,
};

constexpr std::string_view kOptimizer = "megatron/core/optimizer/optimizer.py";
constexpr std::string_view kLayerWise = "megatron/core/optimizer/layer_wise_optimizer.py";
constexpr Raised kNoState = {kOptimizer, {0, 855, 856, 862, 883, 1197, 1229}};
constexpr Raised kOtherGroups = {kOptimizer, {0, 863, 864, 870, 0, 0, 0}};
constexpr Raised kDealtFile = {kLayerWise, {0, 0, 0, 372, 0, 0, 0}};
constexpr Raised kDealtFileRead = {kLayerWise, {0, 0, 0, 298, 0, 0, 0}};
constexpr Raised kNoRankFile = {kLoading, {1136, 1270, 1362, 1338, 1385, 1743, 2111}};
constexpr Raised kUnpadded = {"megatron/core/optimizer/distrib_optimizer.py",
                              {1978, 2001, 2018, 2013, 2234, 2290, 2300}};

struct Place {
  uint64_t tp = 0, pp = 0, ep = 0;
};

std::string rank_folder(const ResumeCase& of, const Place& place) {
  const auto digits = [](uint64_t number, size_t count) {
    const std::string text = std::to_string(number);
    return std::string(count > text.size() ? count - text.size() : 0, '0') + text;
  };
  return "mp_rank_" + digits(place.tp, 2) + (of.pp() > 1 ? "_" + digits(place.pp, 3) : "") +
         (of.ep() > 1 ? "_" + digits(place.ep, 3) : "");
}

ResumeCertificate no_rank_file(const ResumeCase& of, const std::string& folder) {
  return refusal(of, kNoRankFile,
                 "could not load the checkpoint: [Errno 2] No such file or directory: 'CKPT/" +
                     folder + "/model_optim_rng.pt'");
}

ResumeCertificate other_groups(const ResumeCase& of) {
  return refusal(of, kOtherGroups,
                 "ValueError: loaded state dict contains a parameter group that doesn't match "
                 "the size of optimizer's group");
}

RuleAnswer first_rank_file_can_be_read(const ResumeCase& of) {
  const std::string folder = rank_folder(of, {});
  if (!of.facts.rank_folders.contains(folder)) return no_rank_file(of, folder);
  const std::string global = unsupported_global(of);
  if (!global.empty()) {
    return refusal(of, kNoRankFile,
                   "could not load the checkpoint: Unsupported global: GLOBAL " + global);
  }
  const bool names_numpy_1 = of.facts.globals.contains("numpy.core.multiarray._reconstruct");
  if (!names_numpy_1) return std::nullopt;
  return not_known(
      "whether the run has NumPy 1: files name its functions, which torch.load with "
      "weights_only refuses under NumPy 2");
}

RuleAnswer other_rank_files_are_there(const ResumeCase& of) {
  for (uint64_t pp = 0; pp < of.pp(); ++pp) {
    for (uint64_t ep = 0; ep < of.ep(); ++ep) {
      for (uint64_t tp = 0; tp < of.tp(); ++tp) {
        const std::string folder = rank_folder(of, {tp, pp, ep});
        if (!of.facts.rank_folders.contains(folder)) return no_rank_file(of, folder);
      }
    }
  }
  return std::nullopt;
}

RuleAnswer rank_files_have_the_model(const ResumeCase& of) {
  if (of.chunks() == 1 && of.old_chunks() > 1) {
    return refusal(of, kNoModel, "KeyError: 'model'");
  }
  const bool is_resized = of.has(Effect::Shape) || of.is_other_size("tensor_model_parallel_size");
  const bool changes_blocks = of.is_other("num_experts") &&
                              (of.old("num_experts").is_null() || of.now("num_experts").is_null());
  if (is_resized && !changes_blocks) {
    return refusal(of, {"megatron/core/transformer/module.py", {0, 514, 518, 518, 514, 538, 585}},
                   "RuntimeError: Error(s) in loading state_dict for GPTModel");
  }
  return std::nullopt;
}

RuleAnswer rank_files_have_the_optimizer(const ResumeCase& of) {
  if (!of.wants_optimizer()) return std::nullopt;
  const bool is_torch_alone =
      !of.flag("auto_detect_ckpt_format") && of.now("ckpt_format") == "torch";
  if (of.facts.is_layer_wise && !of.has(Effect::Optimizer)) {
    if (of.tree >= Core0182) {
      return refusal(of, {kLoading, {0, 0, 0, 0, 1926, 2567, 2970}},
                     "AttributeError: 'ChainedOptimizer' object has no attribute "
                     "'load_state_dict_from_file'");
    }
    if (!is_torch_alone) {
      return refusal(of, kDealtFileRead, "AttributeError: 'list' object has no attribute 'values'");
    }
  }
  if (!of.has(Effect::Optimizer)) return std::nullopt;
  const std::string optimizer = python_text(of.now("optimizer"));
  if (optimizer == "dist_muon") {
    if (of.facts.is_layer_wise) return std::nullopt;  // it is still dealt
    return refusal(of, kDealtFile, "FileNotFoundError: [Errno 2]");
  }
  if (!of.facts.is_layer_wise) return refusal(of, kNoState, "KeyError: 'state'");
  if (optimizer == "muon") return other_groups(of);
  return refusal(of, {kOptimizer}, "TypeError: list indices must be integers or slices, not str");
}

RuleAnswer dealt_files_fit(const ResumeCase& of) {
  if (!of.wants_optimizer() || !of.facts.is_layer_wise) return std::nullopt;
  const bool has_contexts = of.cp() > 1 || of.old_size("context_parallel_size") > 1;
  if (has_contexts || of.has(Effect::DropsParams)) {
    return refusal(of, {kOptimizer, {0, 0, 0, 894, 0, 0, 0}}, "RuntimeError: The size of tensor a");
  }
  if (of.dp() != of.old_dp() || of.has(Effect::AddsParams)) {
    return other_groups(of);
  }
  return std::nullopt;
}

RuleAnswer flat_file_fits(const ResumeCase& of) {
  if (!of.wants_optimizer() || !of.facts.is_zero1) return std::nullopt;
  if (of.has(Effect::Dtype)) {
    return refusal(
        of,
        {"megatron/core/optimizer/distrib_optimizer.py", {0, 2000, 2017, 2012, 2233, 2289, 2299}},
        "KeyError: (torch.");
  }
  const bool changes_params =
      of.has(Effect::AddsParams) || of.has(Effect::DropsParams) || of.is_other("num_experts");
  if (changes_params || of.chunks() != of.old_chunks() || of.is_other("ddp_num_buckets")) {
    return refusal(of, kUnpadded,
                   "AssertionError: Number of unpadded elements must be same in current run");
  }
  return std::nullopt;
}

constexpr ResumeRule kRankFileRules[] = {
    first_rank_file_can_be_read,
    arguments_are_the_same,
    rank_files_have_the_model,
    other_rank_files_are_there,
    rank_files_have_the_optimizer,
    rates_of_groups_are_the_same,
    dealt_files_fit,
    flat_file_fits,
};

}  // namespace

std::span<const ResumeRule> store_rules() { return kStoreRules; }

std::span<const ResumeRule> rank_file_rules() { return kRankFileRules; }

}  // namespace tools::inspect
