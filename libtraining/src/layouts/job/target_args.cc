// args of a target. Source of what follows from what: validate_args of
// megatron/training/arguments.py (April 2026).
#include "layouts/job/target_args.h"

#include <optional>

#include <ckpt/error.h>

#include "args/run_args.h"
#include "parallel/stages.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

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
    throw ckpt::Error(ckpt::ErrorCode::Unsupported,
                      {.file = {}, .key = "/args/@" + std::string(name)},
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
    // Of August 2026.
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

}  // namespace

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

}  // namespace optim
