// What load_checkpoint does with a folder of ranks' files, in its order.
#include "inspect/load/resume_case.h"

namespace tools::inspect {
namespace {

using enum MegatronTree;

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
  if (of.has(Effect::Optimizer)) {
    const std::string optimizer = python_text(of.now("optimizer"));
    const bool is_still_dealt = of.facts.is_layer_wise && optimizer == "dist_muon";
    if (is_still_dealt) return std::nullopt;
    if (optimizer == "dist_muon") return refusal(of, kDealtFile, "FileNotFoundError: [Errno 2]");
    if (!of.facts.is_layer_wise) return refusal(of, kNoState, "KeyError: 'state'");
    if (optimizer == "muon") {
      return refusal(of, kOtherGroups,
                     "ValueError: loaded state dict contains a parameter group that doesn't match "
                     "the size of optimizer's group");
    }
    return refusal(of, {kOptimizer}, "TypeError: list indices must be integers or slices, not str");
  }
  return std::nullopt;
}

RuleAnswer dealt_files_fit(const ResumeCase& of) {
  if (!of.wants_optimizer() || !of.facts.is_layer_wise) return std::nullopt;
  const bool has_contexts = of.cp() > 1 || of.old_size("context_parallel_size") > 1;
  if (has_contexts || of.has(Effect::DropsParams)) {
    return refusal(of, {kOptimizer, {0, 0, 0, 894, 0, 0, 0}}, "RuntimeError: The size of tensor a");
  }
  if (of.dp() != of.old_dp() || of.has(Effect::AddsParams)) {
    return refusal(of, kOtherGroups,
                   "ValueError: loaded state dict contains a parameter group that doesn't match "
                   "the size of optimizer's group");
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

std::span<const ResumeRule> rank_file_rules() { return kRankFileRules; }

}  // namespace tools::inspect
