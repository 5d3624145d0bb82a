// What the writers of both formats ask of a job, and what a change of sizes loses.
#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "args/run_args.h"
#include "grid/placement.h"
#include "layouts/job/layer_wise_target.h"
#include "layouts/job/seeded_rng.h"
#include "parallel/stages.h"
#include "state/words.h"

namespace optim {
namespace {

class ArgsWriter {
 public:
  ArgsWriter(const TargetJob& job, ValueTree& tree, NodeId attributes)
      : job_(job), tree_(tree), attributes_(attributes) {}

  void run() {
    if (job_.size_changes()) {
      set_sizes();
      set_pipeline();
      set_sequence_parallel();
    }
    if (job_.vocabulary_rows != 0) set("padded_vocab_size", job_.vocabulary_rows);
    if (job_.format_changes()) {
      const bool dist = job_.spec.format == ckpt::Format::TorchDist;
      put("ckpt_format", tree_.str(name(job_.spec.format)));
      put("use_dist_ckpt", tree_.boolean(dist));
    }
  }

 private:
  bool has(std::string_view name) const { return tree_.value(attributes_).find(name).has_value(); }
  // An attribute that the Namespace has; an old version's args stay as they are.
  void put(std::string_view name, NodeId value) {
    if (!has(name)) return;
    require_plain(name);
    tree_.put(attributes_, name, value);
  }
  // What is put in its place would lose what a list or an object says.
  void require_plain(std::string_view name) const {
    const Kind kind = tree_.value(attributes_).find(name)->kind();
    const bool is_plain = kind == Kind::None || kind == Kind::Bool || kind == Kind::Int ||
                          kind == Kind::Float || kind == Kind::Str;
    if (is_plain) return;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = "/args/@" + std::string(name)},
                "is neither a number nor a text, and follows from sizes that change");
  }
  void set(std::string_view name, uint64_t number) {
    const auto known = tree_.value(attributes_).find(name);
    if (known) require_plain(name);
    const bool is_same =
        known && known->is(Kind::Int) && known->as_int() == static_cast<int64_t>(number);
    if (known && !known->is_none() && !is_same) {
      tree_.put(attributes_, name, tree_.integer(static_cast<int64_t>(number)));
    }
  }
  // Also where args do not say it, and a reader would take another number for it.
  void set_or_add(std::string_view name, uint64_t number, uint64_t by_default) {
    const auto known = tree_.value(attributes_).find(name);
    const bool is_stated = known && !known->is_none();
    if (is_stated || number == by_default) return set(name, number);
    tree_.put(attributes_, name, tree_.integer(static_cast<int64_t>(number)));
  }
  template <class Number>
  void set_or_none(std::string_view name, std::optional<Number> number) {
    put(name, number ? tree_.integer(static_cast<int64_t>(*number)) : tree_.none());
  }

  void set_sizes() {
    const ParallelSizes& sizes = job_.grid.sizes;
    set("data_parallel_size", sizes.data_parallel);
    set("world_size", sizes.world());
    set("inprocess_active_world_size", sizes.world());
    set("context_parallel_size", sizes.context_parallel);
    set("tensor_model_parallel_size", sizes.tensor_parallel);
    set("pipeline_model_parallel_size", sizes.pipeline_parallel);
    set("transformer_pipeline_model_parallel_size", sizes.pipeline_parallel);
    set_or_add("expert_model_parallel_size", sizes.expert_parallel, 1);
    set_or_add("expert_tensor_parallel_size", sizes.expert_tensor_parallel, sizes.tensor_parallel);
    set("num_distributed_optimizer_instances", job_.grid.optimizer_instances);
    // Of core 0.20-dev.
    set("tensor_parallel_num_weight_shards", sizes.tensor_parallel);
    set("expert_tensor_parallel_num_weight_shards", sizes.expert_tensor_parallel);
  }

  void set_pipeline() {
    const PipelineSplit &split = job_.grid.pipeline, &old = job_.source.grid.pipeline;
    if (split == old) return;
    const uint32_t chunks = split.chunks_per_stage;
    const bool by_layout = !split.pipeline_model_parallel_layout.empty();
    const bool is_hybrid = !split.hybrid_layer_pattern.empty();
    const bool has_chunks = chunks > 1 && !by_layout && !is_hybrid;
    const auto counted = has_chunks ? std::optional(chunks) : std::nullopt;
    set_or_none("virtual_pipeline_model_parallel_size",
                chunks > 1 ? std::optional(chunks) : std::nullopt);
    const Value args = tree_.value(attributes_);
    const auto by_layers = args.find("num_layers_per_virtual_pipeline_stage");
    if (by_layers && by_layers->is(Kind::Int) && has_chunks) {
      set("num_layers_per_virtual_pipeline_stage",
          split.num_layers / split.pipeline_parallel / chunks);
    } else {
      set_or_none("num_layers_per_virtual_pipeline_stage", std::optional<uint32_t>());
      set_or_none("num_virtual_stages_per_pipeline_rank", counted);
    }
    if (has("pipeline_model_parallel_layout")) {  // Megatron's own class may hold it
      tree_.put(attributes_, "pipeline_model_parallel_layout",
                by_layout ? tree_.str(split.pipeline_model_parallel_layout) : tree_.none());
    }
    for (const std::string_view name : kHybridPatterns) {
      const auto known = args.find(name);
      if (known && known->is(Kind::Str)) put(name, tree_.str(split.hybrid_layer_pattern));
    }
    set_or_none("decoder_first_pipeline_num_layers", split.num_layers_in_first_pipeline_stage);
    set_or_none("decoder_last_pipeline_num_layers", split.num_layers_in_last_pipeline_stage);
    put("account_for_embedding_in_pipeline_split",
        tree_.boolean(split.account_for_embedding_in_pipeline_split));
    put("account_for_loss_in_pipeline_split",
        tree_.boolean(split.account_for_loss_in_pipeline_split));
    if ((chunks > 1) == (old.chunks_per_stage > 1)) return;
    // The interleaved schedule alone overlaps its communication.
    put("overlap_p2p_comm", tree_.boolean(chunks > 1));
    put("align_param_gather", tree_.boolean(chunks > 1));
  }

  // Off without tensor parallelism; experts with it need it.
  void set_sequence_parallel() {
    const uint32_t tensor = job_.grid.sizes.tensor_parallel;
    if (tensor == job_.source.grid.sizes.tensor_parallel) return;
    if (tensor == 1) put("sequence_parallel", tree_.boolean(false));
    if (tensor > 1 && job_.source.facts.expert_count > 0) {
      put("sequence_parallel", tree_.boolean(true));
    }
  }

  const TargetJob& job_;
  ValueTree& tree_;
  NodeId attributes_;
};

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
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = "rng_state"}, which + " are missing",
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
  const auto frozen = std::ranges::count_if(
      job.source.params, [&](const TrainedParam& param) { return is_frozen(job.source, param); });
  std::string text = std::to_string(idle) + " of " + std::to_string(job.ranks.size()) +
                     (idle == 1 ? " ranks owns" : " ranks own") +
                     " no parameter and will not update any: the checkpoint has " +
                     std::to_string(job.source.params.size()) + " parameters";
  if (frozen != 0) text += ", " + std::to_string(frozen) + " of them frozen";
  job.target.warnings.push_back(std::move(text));
}

}  // namespace

// args of a target. Source of what follows from what: validate_args of
// megatron/training/arguments.py (core 0.18-dev).
NodeId carry_args(const TargetJob& job, const Value& args, ckpt::ArchiveBuilder& archive) {
  const NodeId copied = archive.carry(args, job.source.common);
  ValueTree& tree = archive.tree();
  const NodeId attributes = tree.value(copied).state()->id();
  ArgsWriter(job, tree, attributes).run();
  return copied;
}

void set_rank(ValueTree& tree, NodeId args, uint32_t rank) {
  const NodeId attributes = tree.value(args).state()->id();
  for (const std::string_view name : {"rank", "local_rank"}) {
    const auto known = tree.value(attributes).find(name);
    if (!known || !known->is(Kind::Int) || known->as_int() == rank) continue;
    tree.put(attributes, name, tree.integer(rank));
  }
}

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
