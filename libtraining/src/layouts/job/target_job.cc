// What the writers of both formats ask of a job, and what a change of sizes loses.
#include <algorithm>
#include <set>
#include <tuple>

#include <ckpt/error.h>

#include "layouts/job/layer_wise_target.h"
#include "layouts/job/seeded_rng.h"
#include "layouts/job/target_args.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

// One entry means that all ranks share it; more are indexed by data-parallel rank at load.
bool is_per_data_rank(const Value& rng) { return rng.is(Kind::List) && rng.size() > 1; }

// torch_dist keeps one for a pipeline stage and tensor parallel rank.
void note_expert_rng(TargetJob& job) {
  const auto differs = [&](const RankRng& rng) {
    return std::ranges::any_of(job.source.rng_states, [&](const RankRng& other) {
      return other.tensor == rng.tensor && other.pipeline == rng.pipeline &&
             other.expert < rng.expert;
    });
  };
  const auto count = std::ranges::count_if(job.source.rng_states, differs);
  if (count == 0) return;
  job.target.not_carried.push_back(
      {"rng_state of " + std::to_string(count) + " expert-parallel ranks",
       "torch_dist stores one for each pipeline stage and tensor-parallel rank"});
}

// How many places of the source's grid there are, and how many without one.
struct MissingRng {
  size_t count = 0, of = 0;
};
MissingRng missing_rng(const FiledState& source) {
  const bool has_experts = source.filed.container == ckpt::Format::Torch;
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> places;
  for (const WorldRank& rank : ranks_of(source.grid)) {
    if (rank.writes_model) places.emplace(rank.at.tp, rank.at.pp, has_experts ? rank.at.ep : 0);
  }
  const size_t count = places.size();
  for (const RankRng& rng : source.rng_states) places.erase({rng.tensor, rng.pipeline, rng.expert});
  return {places.size(), count};
}

// A rank without one would draw the random numbers of the first rank.
void require_rng(TargetJob& job) {
  const MissingRng missing = missing_rng(job.source);
  if (missing.count == 0) return;
  const std::string which =
      std::to_string(missing.count) + " of " + std::to_string(missing.of) + " random states";
  if (job.spec.rng != RngPolicy::Keep || has_linked_rng(job)) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = {}, .key = "rng_state"},
                      which + " are missing",
                      "--rng keep gives their ranks that of the first rank; with other tensor- or "
                      "pipeline-parallel sizes all are seeded anew");
  }
  job.change("rng_state", which + " are missing: their ranks get that of the first rank");
}

void note_rng(TargetJob& job) {
  if (job.source.rng_states.empty()) return;
  if (has_linked_rng(job)) return require_rng(job);
  const Value first = job.source.common.tree.value(job.source.rng_states[0].value);
  const bool data_size_changes =
      job.grid.sizes.data_parallel != job.source.grid.sizes.data_parallel;
  if (is_per_data_rank(first) && data_size_changes && job.spec.rng != RngPolicy::Seed) {
    job.lose("rng_state", "it has one state for each of the old " + std::to_string(first.size()) +
                              " data-parallel ranks (data_parallel_random_init)");
  } else if (!job.reseeds()) {
    require_rng(job);
    if (job.spec.format == ckpt::Format::TorchDist) note_expert_rng(job);
  } else if (job.spec.rng == RngPolicy::Drop) {
    job.lose("rng_state", "the new ranks have other places in the model; --rng drop leaves it out");
  } else if (job.spec.rng == RngPolicy::Seed) {
    job.change("rng_state",
               "the new ranks have other places in the model: it is seeded anew from "
               "args.seed, as a fresh start seeds it");
  } else {
    job.change("rng_state",
               "the new ranks have other places in the model: all get that of the first rank");
  }
}

bool rerun_state_is_lost(TargetJob& job) {
  if (!job.size_changes() && !job.format_changes()) return false;
  job.lose("rerun_state_machine",
           "it holds counters of the old ranks; Megatron starts with new ones");
  return true;
}

// Rows of padding that the target's tensor parallel size adds or leaves out.
void note_vocabulary(TargetJob& job) {
  for (uint32_t i = 0; i < job.source.params.size(); ++i) {
    const TrainedParam& param = job.source.params[i];
    const uint64_t stored = param.weight->shape.empty() ? 0 : param.weight->shape[0];
    const uint64_t wanted = param.weight->shape.empty() ? 0 : job.placement->shape_of(i)[0];
    if (stored == wanted) continue;
    const uint64_t rows = stored > wanted ? stored - wanted : wanted - stored;
    job.change(param.info.name, std::to_string(rows) + " rows of padding behind the vocabulary " +
                                    (stored > wanted ? "are left out" : "are added, as zeros") +
                                    ": " + std::to_string(stored) + " -> " +
                                    std::to_string(wanted) + " rows");
  }
}

void warn_of_batch_size(TargetJob& job) {
  const Value args = job.source.args();
  const auto global = args.find("global_batch_size"), micro = args.find("micro_batch_size");
  if (!global || !micro || !global->is(Kind::Int) || !micro->is(Kind::Int)) return;
  const int64_t per_step = micro->as_int() * job.grid.sizes.data_parallel;
  if (per_step <= 0 || global->as_int() % per_step == 0) return;
  job.target.warnings.push_back("global_batch_size " + std::to_string(global->as_int()) +
                                " is not a multiple of micro_batch_size x data-parallel size = " +
                                std::to_string(per_step) + "; it is kept unchanged");
}

void warn_of_frozen(TargetJob& job) {
  const TrainedParam* first = nullptr;
  size_t count = 0;
  for (const TrainedParam& param : job.source.params) {
    if (is_frozen(job.source, param) && count++ == 0) first = &param;
  }
  if (count == 0) return;
  job.target.warnings.push_back(std::to_string(count) + " parameters are frozen ('" +
                                ckpt::escaped(first->info.name) +
                                "' is the first): they have neither master nor optimizer state");
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
  const auto rank_count = static_cast<uint32_t>(job.source.grid.sizes.world());
  for (const RankItem& item : job.source.rank_items) {
    job.lose(item.name, who_states(item, rank_count) + reason);
  }
}

void warn_of_idle_ranks(TargetJob& job) {
  if (!job.size_changes() || job.source.chain.empty()) return;
  const auto idle = std::ranges::count_if(job.ranks, [&](const WorldRank& rank) {
    return std::ranges::all_of(job.deals->owned(rank.at),
                               [](const auto& params) { return params.empty(); });
  });
  if (idle == 0) return;
  job.target.warnings.push_back(std::to_string(idle) + " of " + std::to_string(job.ranks.size()) +
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

bool has_linked_rng(const TargetJob& job) {
  if (job.spec.linked == nullptr) return false;
  const ParallelSizes& sizes = job.grid.sizes;
  const std::string key = "rng_state/shard_0.0_" + std::to_string(sizes.pipeline_parallel) + "." +
                          std::to_string(sizes.tensor_parallel);
  return job.spec.linked->catalog().find_object(key) != nullptr;
}

bool reseeds_rng(const FiledState& source, const RunGrid& grid) {
  if (source.rng_states.empty()) return false;
  const ParallelSizes &a = grid.sizes, &b = source.grid.sizes;
  const bool same_places = a.tensor_parallel == b.tensor_parallel &&
                           a.pipeline_parallel == b.pipeline_parallel &&
                           a.expert_parallel == b.expert_parallel &&
                           a.expert_tensor_parallel == b.expert_tensor_parallel;
  const Value first = source.common.tree.value(source.rng_states[0].value);
  return !same_places || (is_per_data_rank(first) && a.data_parallel != b.data_parallel);
}

// Linked files keep the states of pipeline stages and tensor parallel ranks that stay.
bool TargetJob::reseeds() const {
  if (!reseeds_rng(source, grid)) return false;
  const ParallelSizes &a = grid.sizes, &b = source.grid.sizes;
  return spec.linked == nullptr || a.tensor_parallel != b.tensor_parallel ||
         a.pipeline_parallel != b.pipeline_parallel;
}

std::optional<NodeId> carry_common_item(TargetJob& job, std::string_view key, const Value& value,
                                        ckpt::ArchiveBuilder& archive) {
  if (key == "args" && !job.source.config.empty()) return std::nullopt;
  if (key == "args") return carry_args(job, value, archive);
  if (key == "rerun_state_machine" && rerun_state_is_lost(job)) return std::nullopt;
  return archive.carry(value, job.source.common);
}

NodeId rng_state_of(const TargetJob& job, const RankCoordinates& at,
                    ckpt::ArchiveBuilder& archive) {
  const FiledState& source = job.source;
  if (source.rng_states.empty()) return ckpt::kNoNode;
  const RankRng* found = &source.rng_states[0];
  if (job.reseeds()) {
    if (job.spec.rng == RngPolicy::Drop) return ckpt::kNoNode;
    if (job.spec.rng == RngPolicy::Seed) return seeded_rng(job, at, archive);
    if (is_per_data_rank(source.common.tree.value(found->value))) return ckpt::kNoNode;
  } else {
    // Where the source has none for each expert parallel rank, they share it.
    for (const RankRng& rng : source.rng_states) {
      const bool is_place = rng.tensor == at.tp && rng.pipeline == at.pp;
      const bool is_nearer = found->tensor != at.tp || found->pipeline != at.pp;
      if (is_place && (is_nearer || rng.expert == at.ep)) found = &rng;
    }
  }
  return archive.carry(source.common.tree.value(found->value), source.common);
}

void note_what_changes(TargetJob& job) {
  warn_of_batch_size(job);
  warn_of_frozen(job);
  warn_of_idle_ranks(job);
  lose_rank_items(job);
  note_rng(job);
  note_vocabulary(job);
}

}  // namespace optim
