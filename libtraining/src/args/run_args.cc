#include "args/run_args.h"

#include <optional>

#include "args/common_state.h"
#include "model/model_rules.h"
#include "parallel/stages.h"
#include "state/words.h"

namespace optim {
namespace {

// The grid of ranks and the shape of the model, as args state them.
class ArgsReader {
 public:
  ArgsReader(const Value& args, const std::string& file) : args_(args), file_(file) {}

  RunGrid grid() const {
    RunGrid grid;
    ParallelSizes& sizes = grid.sizes;
    sizes.data_parallel = size("data_parallel_size");
    sizes.context_parallel = size("context_parallel_size");
    sizes.tensor_parallel = size("tensor_model_parallel_size");
    sizes.pipeline_parallel = size("pipeline_model_parallel_size");
    sizes.virtual_pipeline_parallel = size("virtual_pipeline_model_parallel_size");
    sizes.expert_parallel = size("expert_model_parallel_size");
    sizes.expert_tensor_parallel =
        count("expert_tensor_parallel_size").value_or(sizes.tensor_parallel);
    grid.pipeline = pipeline(sizes);
    if (is_true(args_, "use_tp_pp_dp_mapping")) grid.rank_order = "tp-cp-ep-pp-dp";
    check(sizes);
    grid.optimizer_instances = optimizer_instances(sizes);
    return grid;
  }

  ModelFacts facts() const {
    ModelFacts facts;
    facts.expert_count = count("num_experts").value_or(0);
    facts.attention_heads = count("num_attention_heads").value_or(0);
    facts.gated_linear_unit = stated_gating(args_).has_value();
    set_glu_blocks(facts);
    facts.layer_norm_renamed = has_local_layers();
    facts.experts_grouped = is_true(args_, "moe_grouped_gemm") && !facts.layer_norm_renamed;
    facts.layers_stacked = has_layers_alike();
    const auto untied = args_.find("untie_embeddings_and_output_weights");
    facts.output_is_tied = untied && untied->is(Kind::Bool) && !untied->as_bool();
    if (is_true(args_, "group_query_attention")) facts.query_groups = count("num_query_groups");
    if (const auto rows = count("vocab_size")) facts.vocabulary = *rows;
    const auto tokenizer = args_.find("tokenizer_type");
    facts.has_end_token =
        tokenizer && tokenizer->is(Kind::Str) && tokenizer->text() == "NullTokenizer";
    facts.vocabulary_divisor = size("make_vocab_size_divisible_by");
    return facts;
  }

  [[noreturn]] void unsupported(std::string_view name, const std::string& problem) const {
    throw Error(ErrorCode::Unsupported, {file_, std::nullopt, "/args/@" + std::string(name)},
                problem);
  }

  void refuse_other_models() const {
    for (const std::string_view name :
         {"heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"}) {
      const auto value = args_.find(name);
      if (value && !value->is_none()) {
        unsupported(name, "is set; heterogeneous models are not supported");
      }
    }
    if (is_true(args_, kLayerWiseArg) && is_true(args_, "use_distributed_optimizer")) {
      unsupported("use_distributed_optimizer", "is set beside " + std::string(kLayerWiseArg));
    }
  }

 private:
  // A positive number; nullopt where it is absent or None.
  std::optional<uint32_t> count(std::string_view name) const {
    const auto value = args_.find(name);
    if (!value || value->is_none()) return std::nullopt;
    if (!value->is(Kind::Int) || value->as_int() < 1 || value->as_int() > INT32_MAX) {
      corrupt(name, "is not a valid size");
    }
    return static_cast<uint32_t>(value->as_int());
  }
  uint32_t size(std::string_view name) const { return count(name).value_or(1); }

  [[noreturn]] void corrupt(std::string_view name, const std::string& problem) const {
    throw Error(ErrorCode::Corrupt, {file_, std::nullopt, "/args/@" + std::string(name)}, problem);
  }

  // Sizes that make no grid.
  void check(const ParallelSizes& sizes) const {
    try {
      sizes.expt_dp();
    } catch (const Error& error) {
      corrupt("world_size", error.problem());
    }
    if (sizes.virtual_pipeline_parallel > 1 && sizes.pipeline_parallel == 1) {
      corrupt("virtual_pipeline_model_parallel_size",
              "is " + std::to_string(sizes.virtual_pipeline_parallel) +
                  ", which needs a pipeline_model_parallel_size above 1");
    }
    if (sizes.expert_parallel > 1 && !count("num_experts")) {
      corrupt("expert_model_parallel_size",
              "is " + std::to_string(sizes.expert_parallel) +
                  ", but the model has no experts by args.num_experts");
    }
  }

  // Of Megatron-Core since 0.18; the dense layers' kernel knows blocks of 32 alone.
  void set_glu_blocks(ModelFacts& facts) const {
    facts.glu_of_experts.rows = count("moe_mlp_glu_interleave_size").value_or(0);
    facts.glu_of_shared_experts = {count("moe_shared_expert_glu_interleave_size").value_or(0),
                                   is_true(args_, "use_grouped_gemm_for_shared_expert")};
    if (is_true(args_, "use_grouped_gemm_for_dense_mlp") &&
        is_true(args_, "use_transformer_engine_op_fuser")) {
      facts.glu_of_dense_layers = {32, false};
    }
  }

  // They are neighbours of equal size among the data-parallel ranks, dense and of experts.
  uint32_t optimizer_instances(const ParallelSizes& sizes) const {
    const std::string_view name = "num_distributed_optimizer_instances";
    const uint32_t instances = size(name);
    if (instances == 1) return 1;
    if (is_true(args_, kLayerWiseArg)) {
      unsupported(name,
                  "is above 1 beside " + std::string(kLayerWiseArg) + ", which is not supported");
    }
    if (sizes.dp_cp() % instances != 0 || sizes.expt_dp() % instances != 0) {
      corrupt(name, "is " + std::to_string(instances) + ", which does not divide the " +
                        std::to_string(sizes.dp_cp()) + " data-parallel ranks, or the " +
                        std::to_string(sizes.expt_dp()) + " of experts");
    }
    return instances;
  }

  PipelineSplit pipeline(const ParallelSizes& sizes) const {
    PipelineSplit split;
    split.num_layers = size("num_layers");
    split.pipeline_parallel = sizes.pipeline_parallel;
    split.chunks_per_stage = sizes.virtual_pipeline_parallel;
    split.num_layers_in_first_pipeline_stage = count("decoder_first_pipeline_num_layers");
    split.num_layers_in_last_pipeline_stage = count("decoder_last_pipeline_num_layers");
    split.account_for_embedding_in_pipeline_split =
        is_true(args_, "account_for_embedding_in_pipeline_split");
    split.account_for_loss_in_pipeline_split = is_true(args_, "account_for_loss_in_pipeline_split");
    split.mtp_num_layers = count("mtp_num_layers").value_or(0);
    const auto layout = args_.find("pipeline_model_parallel_layout");
    if (layout && layout->is(Kind::Str)) split.pipeline_model_parallel_layout = layout->text();
    if (layout && !layout->is_none() && !layout->is(Kind::Str)) {
      unsupported("pipeline_model_parallel_layout", "is not a text");
    }
    split.hybrid_layer_pattern = hybrid_pattern(split);
    return split;
  }

  // Kinds of the layers of a hybrid model, as this release calls the argument, or an old one.
  std::string hybrid_pattern(const PipelineSplit& split) const {
    for (const std::string_view name : kHybridPatterns) {
      const auto value = args_.find(name);
      if (!value || value->is_none()) continue;
      if (!value->is(Kind::Str)) unsupported(name, "is not a text");
      const HybridPattern pattern = parse_hybrid_pattern(value->text());
      uint64_t layers = 0;
      for (const uint32_t count : pattern.stages) layers += count;
      if (layers != split.num_layers) {
        corrupt(name, "has " + std::to_string(layers) + " layers, but args.num_layers is " +
                          std::to_string(split.num_layers));
      }
      const uint64_t chunks = uint64_t{split.pipeline_parallel} * split.chunks_per_stage;
      if (pattern.stages.size() > 1 && pattern.stages.size() != chunks) {
        corrupt(name, "has " + std::to_string(pattern.stages.size()) +
                          " pipeline stages between '|', but args' sizes make " +
                          std::to_string(chunks));
      }
      return std::string(value->text());
    }
    return {};
  }

  // Megatron stacks keys over layers only where these are alike (TransformerBlock's
  // sharded_state_dict): it asks whether a frequency is a list or above 1.
  bool has_layers_alike() const {
    for (const std::string_view name : {"moe_layer_freq", "linear_attention_freq"}) {
      const auto value = args_.find(name);
      if (value && (value->is(Kind::List) || (value->is(Kind::Int) && value->as_int() > 1))) {
        return false;
      }
    }
    return !is_true(args_, "hetereogenous_dist_checkpoint");  // sic
  }

  bool has_local_layers() const {
    const auto implementation = args_.find("transformer_impl");
    if (!implementation || !implementation->is(Kind::Str)) {
      unsupported("transformer_impl", "is missing, so the names of layer norms are unknown");
    }
    if (implementation->text() == "local") return true;
    if (implementation->text() == "transformer_engine") return false;
    unsupported("transformer_impl", "'" + ckpt::escaped(implementation->text()) + "' is not known");
  }

  const Value& args_;
  const std::string& file_;
};

}  // namespace

std::optional<Value> args_of(const Value& root) {
  const auto args = root.is(Kind::Dict) ? root.find("args") : std::nullopt;
  const bool is_namespace = args && args->is(Kind::Object) && args->state();
  return is_namespace && args->state()->is(Kind::Dict) ? args->state() : std::nullopt;
}

RunArgs::RunArgs(const OpenedTraining& checkpoint) {
  if (checkpoint.catalog().format == ckpt::Format::TorchDist) {
    const CommonState* common = nullptr;
    try {
      common = checkpoint.common_state();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::IoFailure) throw;
      return;  // a finding of who reads it for what it holds
    }
    if (common == nullptr) return;
    file_ = common->file;
    args_ = args_of(common->document->tree.root());
    return;
  }
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const Document* document = checkpoint.document(file.path);
    if (document == nullptr || !file.path.ends_with("model_optim_rng.pt")) continue;
    file_ = file.path;
    args_ = args_of(document->tree.root());
    return;
  }
}

bool RunArgs::is_true(std::string_view name) const { return args_ && optim::is_true(*args_, name); }

std::string RunArgs::text(std::string_view name) const {
  const auto value = args_ ? args_->find(name) : std::nullopt;
  return value && value->is(Kind::Str) ? ckpt::escaped(value->text()) : std::string();
}

bool RunArgs::is_false(std::string_view name) const {
  const auto value = args_ ? args_->find(name) : std::nullopt;
  return value && value->is(Kind::Bool) && !value->as_bool();
}

uint32_t RunArgs::size(std::string_view name) const {
  const auto value = args_ ? args_->find(name) : std::nullopt;
  const bool is_size =
      value && value->is(Kind::Int) && value->as_int() >= 1 && value->as_int() <= INT32_MAX;
  return is_size ? static_cast<uint32_t>(value->as_int()) : 1;
}

bool is_true(const Value& args, std::string_view name) {
  const auto value = args.find(name);
  return value && value->is(Kind::Bool) && value->as_bool();
}

std::optional<std::string_view> stated_gating(const Value& args) {
  for (const std::string_view flag : {"swiglu", "quick_geglu", "gated_linear_unit"}) {
    if (is_true(args, flag)) return flag;
  }
  return std::nullopt;
}

SizeChange sizes_of(const OpenedTraining& checkpoint) {
  const RunArgs& known = checkpoint.args();
  const auto stated = known.args();
  if (!stated) {
    throw Error(ErrorCode::Unsupported, {.file = checkpoint.shown_path(), .key = {}},
                "does not state the parallel sizes of a run");
  }
  const RunGrid grid = ArgsReader(*stated, known.file()).grid();
  const PipelineSplit& pipeline = grid.pipeline;
  SizeChange change{.data_parallel = grid.sizes.data_parallel,
                    .tensor_parallel = grid.sizes.tensor_parallel,
                    .pipeline_parallel = grid.sizes.pipeline_parallel,
                    .virtual_pipeline_parallel = grid.sizes.virtual_pipeline_parallel,
                    .context_parallel = grid.sizes.context_parallel,
                    .expert_parallel = grid.sizes.expert_parallel,
                    .expert_tensor_parallel = grid.sizes.expert_tensor_parallel};
  if (!pipeline.pipeline_model_parallel_layout.empty()) {
    change.pipeline_layout = pipeline.pipeline_model_parallel_layout;
  }
  if (has_stages(pipeline.hybrid_layer_pattern)) {
    change.pipeline_layout =
        layout_of(parse_hybrid_pattern(pipeline.hybrid_layer_pattern), pipeline.mtp_num_layers);
  }
  change.first_stage_layers = pipeline.num_layers_in_first_pipeline_stage;
  change.last_stage_layers = pipeline.num_layers_in_last_pipeline_stage;
  return change;
}

void read_args(const Value& args, const std::string& file, TrainingState& state) {
  const ArgsReader reader(args, file);
  reader.refuse_other_models();
  state.grid = reader.grid();
  state.facts = reader.facts();
  const ModelRules& rules = state.rules ? *state.rules : ModelRules::built_in();
  state.rules = std::make_shared<const ModelRules>(rules.of_args(args));
}

}  // namespace optim
