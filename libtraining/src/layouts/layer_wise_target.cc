// A target of a training state: which row of the table writes it, in which grid.
#include <algorithm>
#include <tuple>

#include <ckpt/error.h>
#include <training/megatron_folders.h>

#include "layouts/job/layer_wise_target.h"
#include "layouts/layouts.h"
#include "model/stage_names.h"
#include "state/remainders.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;

std::string tracker_text(const std::string& folder_name) {
  constexpr std::string_view kPrefix = kMegatronFolders.iteration_prefix;
  if (!folder_name.starts_with(kPrefix)) return folder_name;  // release
  const size_t first = folder_name.find_first_not_of('0', kPrefix.size());
  return first == folder_name.npos ? "0" : folder_name.substr(first);
}

// iter_0000003/... and, last, the tracker that makes it the latest.
void make_root(ckpt::Target& target, const std::string& folder_name) {
  for (ckpt::TargetFile& file : target.files) file.path = folder_name + "/" + file.path;
  target.files.push_back({std::string(kMegatronFolders.tracker), {}, tracker_text(folder_name)});
}

// Megatron, or we, write no such files.
const LayoutRow& row_to_write(const TargetForm& form) {
  const LayoutRow* const row = layout_to_write(form.container, form.era, form.sharding);
  const bool is_layer_wise = form.sharding == OptimizerSharding::LayerWise;
  if (row == nullptr && is_layer_wise) {
    throw Error(ErrorCode::Unsupported, {},
                "Megatron-Core from 0.18 on writes no `torch` checkpoints of LayerWise optimizers",
                "leave out --target-megatron, or write torch_dist");
  }
  if (row == nullptr) {
    throw Error(ErrorCode::Unsupported, {},
                "the `torch` layout of August 2026 of optimizers that are not sharded is not known",
                "leave out --target-megatron; --model-only writes the model in that layout");
  }
  return *row;
}

// What is written as asked, though not every Megatron runs with it.
void warn_of_form(const TrainingState& original, TargetJob& job) {
  const bool is_dealt_anew =
      job.is_layer_wise() && original.sharding != OptimizerSharding::LayerWise;
  if (is_dealt_anew && !job.source.chain.empty()) {
    job.target.warnings.push_back(
        "no Megatron run has a LayerWise optimizer for Adam alone: torch_dist at EP 1 loads into a "
        "run without --use-distributed-optimizer");
  }
  const auto is_expert_of_half = [&](const ParamGroup& group) {
    return group.is_expert_parallel && job.source.chain[group.optimizer_index].is_distributed;
  };
  const bool has_experts = job.is_layer_wise() && has_halves(job.form.era) &&
                           std::ranges::any_of(job.groups.groups, is_expert_of_half);
  if (!has_experts) return;
  job.target.warnings.push_back(
      "Megatron-Core from 0.18 on refuses experts beside Muon at EP above 1, unless it is started "
      "with --no-use-layer-wise-param-layout and a checkpoint of --target-megatron 2026-04");
}

// Of layers that are not known by name it is not known how they are cut and dealt.
void require_known_stacks(const TrainingState& source, const RunGrid& grid) {
  const auto cut_by = [](const ParallelSizes& sizes) {
    return std::tuple(sizes.tensor_parallel, sizes.pipeline_parallel,
                      sizes.virtual_pipeline_parallel, sizes.expert_parallel,
                      sizes.expert_tensor_parallel);
  };
  if (cut_by(grid.sizes) == cut_by(source.grid.sizes)) return;
  for (const TrainedParam& param : source.params) {
    if (!is_of_unknown_stack(param.info.name)) continue;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                "is stacked over layers that the model rules do not know (an encoder, a vision "
                "model), so only data and context parallel sizes can change",
                "--dp and --cp; Megatron itself loads torch_dist at any size");
  }
}

}  // namespace

ckpt::Target make_layer_wise_target(const TrainingState& source, const LayerWiseTargetSpec& spec) {
  const TargetForm form = target_form(source, spec.format, spec.form);
  const RunGrid grid = target_grid(source, spec.sizes);
  const auto filed = filed_as(source, form, spec.form.buckets, grid.sizes);
  return make_filed_target({source, filed ? *filed : source, form, grid}, spec);
}

ckpt::Target make_filed_target(const FiledSource& filed, const LayerWiseTargetSpec& spec) {
  const auto& [original, source, form, grid] = filed;
  if (has_remainders(original) && !is_zero1(form.sharding)) {
    throw Error(ErrorCode::Unsupported, {},
                "masters that are stored as 16-bit remainders belong to a DistributedOptimizer, "
                "and have no place in other forms",
                "--optimizer-sharding fully_reshardable, dp_reshardable or flat_file");
  }
  const bool torch = spec.format == ckpt::Format::Torch;
  if (torch && spec.ownership != OwnershipPolicy::PingPong) {
    throw Error(ErrorCode::Unsupported, {},
                "`torch` checkpoints know only ping-pong ownership: Megatron replays its own deal",
                "leave out --ownership, or write torch_dist");
  }
  const LayoutRow& row = row_to_write(form);
  require_known_stacks(source, grid);
  TargetJob job{source, spec, form, grid};
  const bool has_experts_apart = source.facts.expert_count > 0 &&
                                 are_experts_apart(source.args(), job.grid.sizes) &&
                                 !source.chain.empty();
  if (form.sharding == OptimizerSharding::None && has_experts_apart) {
    throw Error(ErrorCode::Unsupported, {},
                "experts of more than one expert-parallel rank have an optimizer of their own "
                "where no optimizer is sharded, which is not supported",
                "--ep 1");
  }
  job.vocabulary_rows = target_vocabulary(source, job.grid, spec.sizes);
  job.ranks = ranks_of(job.grid);
  job.placement.emplace(source, job.grid, job.vocabulary_rows);
  job.groups = target_groups(source, job.grid.sizes);
  job.deals.emplace(source, *job.placement, job.groups.groups,
                    RankDeals::Policy{job.is_layer_wise(), spec.ownership});
  job.target.format = spec.format;
  job.target.not_carried = source.not_carried;
  note_what_changes(job);
  warn_of_form(original, job);
  row.write(job);
  if (spec.as_root) make_root(job.target, source.folder_name);
  return std::move(job.target);
}

}  // namespace optim
