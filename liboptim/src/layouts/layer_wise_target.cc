#include "layouts/layer_wise_target.h"

#include <ckpt/error.h>
#include <optim/megatron_folders.h>

#include <algorithm>

#include "layouts/layouts.h"
#include "layouts/tensor_attributes.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Kind;
using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

// Sets an attribute that the Namespace has; an old version's args stay as they are.
void set_existing(ValueTree& tree, NodeId attributes, std::string_view name, NodeId value) {
  const auto known = tree.value(attributes).find(name);
  if (known && !known->is_none()) tree.put(attributes, name, value);
}

// The sizes as a run of the target's size would have saved them; other parallel sizes are 1.
void set_sizes(const TargetJob& job, ValueTree& tree, NodeId attributes) {
  for (const std::string_view name :
       {"data_parallel_size", "world_size", "inprocess_active_world_size"}) {
    set_existing(tree, attributes, name, tree.integer(job.data_parallel));
  }
}

NodeId carry_args(TargetJob& job, const Value& args, ckpt::ArchiveBuilder& archive) {
  const NodeId copied = archive.carry(args, job.source.common);
  ValueTree& tree = archive.tree();
  const NodeId attributes = tree.value(copied).state()->id();
  if (job.size_changes()) set_sizes(job, tree, attributes);
  if (job.format_changes()) {
    const bool dist = job.spec.format == ckpt::Format::TorchDist;
    set_existing(tree, attributes, "ckpt_format", tree.str(name(job.spec.format)));
    set_existing(tree, attributes, "use_dist_ckpt", tree.boolean(dist));
  }
  return copied;
}

// One entry means that all ranks share it; more are indexed by data-parallel rank at load.
bool rng_is_lost(TargetJob& job, const Value& rng) {
  if (!job.size_changes() || !rng.is(Kind::List) || rng.size() <= 1) return false;
  job.lose("rng_state", "it has one state for each of the old " + std::to_string(rng.size()) +
                            " data-parallel ranks (data_parallel_random_init)");
  return true;
}

bool rerun_state_is_lost(TargetJob& job) {
  if (!job.size_changes() && !job.format_changes()) return false;
  job.lose("rerun_state_machine",
           "it holds counters of the old ranks; Megatron starts with new ones");
  return true;
}

void warn_of_batch_size(TargetJob& job) {
  const Value args = job.source.args();
  const auto global = args.find("global_batch_size"), micro = args.find("micro_batch_size");
  if (!global || !micro || !global->is(Kind::Int) || !micro->is(Kind::Int)) return;
  const int64_t per_step = micro->as_int() * job.data_parallel;
  if (per_step <= 0 || global->as_int() % per_step == 0) return;
  job.target.warnings.push_back("global_batch_size " + std::to_string(global->as_int()) +
                                " is not a multiple of micro_batch_size x data-parallel size = " +
                                std::to_string(per_step) + "; it is kept unchanged");
}

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

// "rank 1 of 4 holds it", "ranks 0, 2 of 4 hold different values of it".
std::string who_states(const RankItem& item, uint32_t rank_count) {
  std::string ranks;
  for (const auto& [rank, value] : item.values) {
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  const bool is_one = item.values.size() == 1;
  return (is_one ? "rank " : "ranks ") + ranks + " of " + std::to_string(rank_count) +
         (is_one ? " holds it" : " hold different values of it");
}

void lose_rank_items(TargetJob& job) {
  if (keeps_rank_items(job)) return;
  const char* const reason = job.spec.format == ckpt::Format::TorchDist
                                 ? "; torch_dist stores one value for all ranks"
                                 : "; the new ranks are different ones";
  for (const RankItem& item : job.source.rank_items) {
    job.lose(item.name, who_states(item, job.source.sizes.data_parallel) + reason);
  }
}

void warn_of_idle_ranks(TargetJob& job) {
  if (!job.size_changes()) return;
  const auto idle = std::ranges::count_if(job.deal, [](const auto& groups) {
    return std::ranges::all_of(groups, [](const auto& params) { return params.empty(); });
  });
  if (idle == 0) return;
  job.target.warnings.push_back(std::to_string(idle) + " of " + std::to_string(job.data_parallel) +
                                (idle == 1 ? " ranks owns" : " ranks own") +
                                " no parameter and will not update any: the " + "checkpoint has " +
                                std::to_string(job.source.params.size()) + " parameters");
}

}  // namespace

bool keeps_rank_items(const TargetJob& job) {
  return job.spec.format == ckpt::Format::Torch && !job.size_changes();
}

ckpt::TensorSource tensor_source(const TensorRef& tensor) {
  return {tensor, ckpt::whole(tensor->shape)};
}

std::vector<std::vector<uint32_t>> groups_of_optimizer(const TargetJob& job, uint32_t rank,
                                                       uint32_t optimizer) {
  size_t first = 0;
  for (uint32_t i = 0; i < optimizer; ++i) first += job.source.chain[i].groups.size();
  const auto begin = job.deal[rank].begin() + static_cast<ptrdiff_t>(first);
  return {begin, begin + static_cast<ptrdiff_t>(job.source.chain[optimizer].groups.size())};
}

std::optional<NodeId> carry_common_item(TargetJob& job, std::string_view key, const Value& value,
                                        ckpt::ArchiveBuilder& archive) {
  if (key == "args") return carry_args(job, value, archive);
  if (key == "rng_state" && rng_is_lost(job, value)) return std::nullopt;
  if (key == "rerun_state_machine" && rerun_state_is_lost(job)) return std::nullopt;
  return archive.carry(value, job.source.common);
}

ckpt::Target make_layer_wise_target(const TrainingState& source, const LayerWiseTargetSpec& spec) {
  const bool torch = spec.format == ckpt::Format::Torch;
  if (torch && spec.ownership != OwnershipPolicy::PingPong) {
    throw Error(ErrorCode::Unsupported, {},
                "`torch` checkpoints know only ping-pong ownership: Megatron replays its own deal",
                "leave out --ownership, or write torch_dist");
  }
  const LayoutRow* const row = layout_to_write(spec.format, spec.layout);
  if (row == nullptr) {
    throw Error(ErrorCode::Unsupported, {},
                "Megatron of August 2026 writes no `torch` checkpoints of LayerWise optimizers",
                "leave out --layout, or write torch_dist");
  }
  const uint32_t data_parallel =
      spec.data_parallel != 0 ? spec.data_parallel : source.sizes.data_parallel;
  std::vector<TrainedParam> params = source.params;
  const std::vector<ParamGroup> groups = group_params(source.args(), params);
  TargetJob job{
      source, spec, data_parallel, deal_params(groups, data_parallel, spec.ownership), {}};
  job.target.format = spec.format;
  job.target.not_carried = source.not_carried;
  warn_of_batch_size(job);
  warn_of_idle_ranks(job);
  lose_rank_items(job);
  row->write(job);
  if (spec.as_root) make_root(job.target, source.folder_name);
  return std::move(job.target);
}

}  // namespace optim
