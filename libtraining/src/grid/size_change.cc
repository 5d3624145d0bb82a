// From the sizes that a user gives to a grid.
#include <algorithm>
#include <numeric>
#include <utility>

#include <training/size_change.h>

#include "args/run_args.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "model/tensor_names.h"
#include "parallel/rank_grid.h"
#include "parallel/stages.h"
#include "sharding/refuse.h"
#include "state/words.h"

namespace optim {
namespace {

uint32_t given(const std::optional<uint32_t>& size, uint32_t otherwise, const char* option) {
  if (size && *size == 0) refuse(std::string(option) + " is 0; it must be at least 1");
  return size.value_or(otherwise);
}

void set_data_parallel(const SizeChange& change, ParallelSizes& sizes) {
  sizes.data_parallel = given(change.data_parallel, sizes.data_parallel, "--dp");
  if (!change.world_size) return;
  const uint32_t world = given(change.world_size, 0, "--world-size");
  ParallelSizes one = sizes;
  one.data_parallel = 1;
  const uint64_t per_replica = one.world();
  if (world % per_replica != 0) {
    refuse("--world-size " + std::to_string(world) +
           " is not a multiple of --tp x --pp x --cp = " + std::to_string(per_replica));
  }
  if (change.data_parallel && uint64_t{*change.data_parallel} * per_replica != world) {
    refuse("--world-size " + std::to_string(world) + " and --dp " +
               std::to_string(*change.data_parallel) + " contradict each other: " +
               std::to_string(uint64_t{*change.data_parallel} * per_replica) + " ranks are needed",
           "one of the two is enough");
  }
  sizes.data_parallel = static_cast<uint32_t>(world / per_replica);
}

ParallelSizes new_sizes(const ParallelSizes& old, const SizeChange& change) {
  ParallelSizes sizes = old;
  sizes.tensor_parallel = given(change.tensor_parallel, old.tensor_parallel, "--tp");
  sizes.pipeline_parallel = given(change.pipeline_parallel, old.pipeline_parallel, "--pp");
  sizes.context_parallel = given(change.context_parallel, old.context_parallel, "--cp");
  sizes.expert_parallel = given(change.expert_parallel, old.expert_parallel, "--ep");
  const bool follows = old.expert_tensor_parallel == old.tensor_parallel;
  sizes.expert_tensor_parallel =
      given(change.expert_tensor_parallel,
            follows ? sizes.tensor_parallel : old.expert_tensor_parallel, "--etp");
  const uint32_t chunks = sizes.pipeline_parallel == 1 ? 1 : old.virtual_pipeline_parallel;
  sizes.virtual_pipeline_parallel = given(change.virtual_pipeline_parallel, chunks, "--vpp");
  set_data_parallel(change, sizes);
  return sizes;
}

bool is_uneven(const PipelineSplit& split) {
  return split.num_layers_in_first_pipeline_stage || split.num_layers_in_last_pipeline_stage ||
         !split.pipeline_model_parallel_layout.empty() || has_stages(split.hybrid_layer_pattern);
}

PipelineSplit new_pipeline(const PipelineSplit& old, const ParallelSizes& sizes,
                           const SizeChange& change) {
  PipelineSplit split = old;
  split.pipeline_parallel = sizes.pipeline_parallel;
  split.chunks_per_stage = sizes.virtual_pipeline_parallel;
  const bool is_other = split.pipeline_parallel != old.pipeline_parallel ||
                        split.chunks_per_stage != old.chunks_per_stage;
  const bool is_given =
      change.pipeline_layout || change.first_stage_layers || change.last_stage_layers;
  if (is_other || is_given) {
    split.num_layers_in_first_pipeline_stage = change.first_stage_layers;
    split.num_layers_in_last_pipeline_stage = change.last_stage_layers;
    split.pipeline_model_parallel_layout = change.pipeline_layout.value_or("");
    const HybridPattern pattern = parse_hybrid_pattern(split.hybrid_layer_pattern);
    split.hybrid_layer_pattern = pattern.kinds + pattern.behind;
  }
  if (split.pipeline_parallel == 1 && !is_given) {
    split.account_for_embedding_in_pipeline_split = false;
    split.account_for_loss_in_pipeline_split = false;
  }
  return split;
}

// A layout says how many chunks there are.
void set_chunks_of_layout(const SizeChange& change, ParallelSizes& sizes) {
  if (!change.pipeline_layout || change.virtual_pipeline_parallel) return;
  const size_t stages = parse_pipeline_layout(*change.pipeline_layout).size();
  if (stages % sizes.pipeline_parallel != 0) {
    refuse("--pipeline-layout has " + std::to_string(stages) +
           " stages, which is not a multiple of --pp " + std::to_string(sizes.pipeline_parallel));
  }
  sizes.virtual_pipeline_parallel = static_cast<uint32_t>(stages / sizes.pipeline_parallel);
}

// The options that a complaint about stages is about.
std::string stages_options(const RunGrid& grid, const SizeChange& change) {
  const ParallelSizes& sizes = grid.sizes;
  std::string options = "--pp " + std::to_string(sizes.pipeline_parallel);
  const auto add = [&](const char* name, const auto& value) {
    if (value) options += " " + std::string(name) + " " + std::to_string(*value);
  };
  if (change.pipeline_layout) {
    options += " --pipeline-layout '" + ckpt::escaped(*change.pipeline_layout) + "'";
  } else if (sizes.virtual_pipeline_parallel > 1) {
    options += " --vpp " + std::to_string(sizes.virtual_pipeline_parallel);
  }
  add("--first-stage-layers", change.first_stage_layers);
  add("--last-stage-layers", change.last_stage_layers);
  return options;
}

void check_stages(const RunGrid& grid, const RunGrid& old, const SizeChange& change) {
  try {
    model_chunks(grid.pipeline);
  } catch (const Error& error) {
    const bool was_uneven = is_uneven(old.pipeline) && !is_uneven(grid.pipeline);
    refuse(stages_options(grid, change) + ": " + error.problem(),
           was_uneven ? "the source's stages are uneven, which is not carried over: "
                        "--pipeline-layout, --first-stage-layers or --last-stage-layers say how "
                        "the new ones are"
                      : "--pipeline-layout, --first-stage-layers and --last-stage-layers make "
                        "uneven stages");
  }
}

// Megatron has a hybrid model's stages in its pattern alone. Releases before 0.17 have none there,
// and divide layers evenly.
void state_in_pattern(const TrainingState& source, PipelineSplit& split) {
  if (split.hybrid_layer_pattern.empty() || split == source.grid.pipeline) return;
  const std::vector<ModelChunk> chunks = model_chunks(split);
  const bool is_old = !source.args().find(kHybridPatterns[0]);
  const bool is_even = std::ranges::all_of(chunks, [&](const ModelChunk& chunk) {
    return chunk.layers.count == chunks.front().layers.count;
  });
  if (is_old && (split.chunks_per_stage > 1 || !is_even)) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args.hybrid_override_pattern"},
                "the release of Megatron that wrote it divides a hybrid model's layers evenly over "
                "pipeline stages, each of one chunk",
                "another --pp, without --vpp and uneven stages");
  }
  const HybridPattern pattern = parse_hybrid_pattern(split.hybrid_layer_pattern);
  if (!is_old) split.hybrid_layer_pattern = pattern_for(pattern, chunks);
  split.pipeline_model_parallel_layout.clear();
  split.num_layers_in_first_pipeline_stage = split.num_layers_in_last_pipeline_stage = {};
}

// What Megatron cannot train or save in such a grid.
void check_model(const TrainingState& source, const RunGrid& grid) {
  const ParallelSizes& sizes = grid.sizes;
  const uint32_t heads = source.facts.attention_heads;
  if (heads != 0 && heads % sizes.tensor_parallel != 0) {
    refuse(std::to_string(heads) + " attention heads cannot be divided evenly over --tp " +
           std::to_string(sizes.tensor_parallel));
  }
  const bool has_copies = source.facts.output_is_tied && grid.pipeline.mtp_num_layers > 0;
  if (has_copies && sizes.pipeline_parallel > 1) {
    refuse("--pp " + std::to_string(sizes.pipeline_parallel) +
           ": Megatron cannot save models with tied embeddings and multi-token prediction on "
           "more than one pipeline stage");
  }
}

bool have_biases(const TrainingState& source) {
  return std::ranges::any_of(source.params, [](const TrainedParam& param) {
    return expert_in(param.info.name) && param.info.name.find(".bias") != std::string::npos;
  });
}

void check_experts(const TrainingState& source, const ParallelSizes& sizes) {
  const uint32_t experts = source.facts.expert_count;
  if (sizes.expert_tensor_parallel > 1 && have_biases(source)) {
    refuse("the experts have biases, which Megatron cannot share over --etp " +
               std::to_string(sizes.expert_tensor_parallel),
           "--etp 1");
  }
  if (experts == 0 && sizes.expert_parallel > 1) {
    refuse("--ep " + std::to_string(sizes.expert_parallel) + ": the model has no experts");
  }
  if (experts != 0 && experts % sizes.expert_parallel != 0) {
    refuse(std::to_string(experts) + " experts cannot be divided evenly over --ep " +
           std::to_string(sizes.expert_parallel));
  }
  if (experts != 0 && sizes.expert_parallel == 1 &&
      sizes.expert_tensor_parallel > sizes.tensor_parallel) {
    refuse("--etp " + std::to_string(sizes.expert_tensor_parallel) + " is above --tp " +
           std::to_string(sizes.tensor_parallel) +
           ": with --ep 1 no rank would own some parts of the experts");
  }
  const uint64_t per_copy = uint64_t{sizes.expert_tensor_parallel} * sizes.expert_parallel;
  const uint64_t stage = sizes.world() / sizes.pipeline_parallel;
  if (stage % per_copy == 0) return;
  refuse("--tp x --cp x --dp = " + std::to_string(stage) +
             " ranks of a stage are not a multiple of --etp x --ep = " + std::to_string(per_copy),
         experts == 0 ? "--etp follows --tp where it is not given" : "another --dp, --ep or --etp");
}

// Heads and groups of a matrix of several projections.
void check_segments(const TrainingState& source, const TrainedParam& param, uint32_t ranks) {
  if (ranks == 1 || !param.sharing.is_split() || param.sharing.split->sections.size() < 2) return;
  const auto found = rules_of(source).find(param.info.name);
  const RowSegment* const uneven = found ? find_uneven_segment(*found->rule, ranks) : nullptr;
  if (uneven == nullptr) return;
  refuse("segment '" + uneven->name + "' is of " + std::to_string(*uneven->part_count) +
         " heads or groups (" + uneven->parts + "), which cannot be divided evenly over " +
         std::to_string(ranks) + " tensor parallel ranks");
}

// Rows, columns and halves that the ranks share.
void check_splits(const TrainingState& source, const RunGrid& grid, uint64_t vocabulary) {
  const Placement placement(source, grid, vocabulary);
  for (uint32_t i = 0; i < source.params.size(); ++i) {
    try {
      placement.shape_on_rank(i);
      check_segments(source, source.params[i], placement.tensor_ranks(i));
    } catch (const Error& error) {
      const bool is_expert = placement.is_expert(i);
      throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = source.params[i].info.name},
                  (is_expert ? "--etp " + std::to_string(grid.sizes.expert_tensor_parallel)
                             : "--tp " + std::to_string(grid.sizes.tensor_parallel)) +
                      ": " + error.problem());
    }
  }
}

constexpr uint64_t kTensorParallelMax = 4096;

// nullptr: there is none.
const TrainedParam* stored_vocabulary(const TrainingState& state) {
  const auto found = std::ranges::find_if(state.params, [&](const TrainedParam& param) {
    return is_vocabulary(state, param.info.name) && !param.weight->shape.empty();
  });
  return found != state.params.end() ? &*found : nullptr;
}

// Whether a larger tensor parallel size pads to this many rows.
bool is_of_larger_size(const TrainingState& state, uint64_t stored) {
  const uint32_t heads = state.facts.attention_heads;
  const uint32_t largest = std::gcd(heads, state.facts.query_groups.value_or(heads));
  const uint64_t divisor = state.facts.vocabulary_divisor;
  const uint64_t last = std::min<uint64_t>({largest, stored / divisor, kTensorParallelMax});
  for (uint32_t tensor = state.grid.sizes.tensor_parallel + 1; tensor <= last; ++tensor) {
    if (largest % tensor != 0) continue;
    if (padded_vocabulary(token_count(state.facts, stored), divisor, tensor) == stored) return true;
  }
  return false;
}

// The embedding and the output layer have one vocabulary.
void refuse_other_rows(const TrainingState& state, const TrainedParam& first) {
  for (const TrainedParam& param : state.params) {
    if (!is_vocabulary(state, param.info.name) || param.weight->shape.empty()) continue;
    if (param.weight->shape[0] == first.weight->shape[0]) continue;
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = param.info.name},
                "has " + std::to_string(param.weight->shape[0]) + " rows, but " + first.info.name +
                    " has " + std::to_string(first.weight->shape[0]));
  }
}

// Rows that come or go by such an argument may be those of tokens.
void refuse_vocabulary(const TrainingState& source) {
  auto problem = contradicted_vocabulary(source);
  if (!problem) return;
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = "args.vocab_size"}, std::move(*problem),
              "--vocab-size gives the true size");
}

}  // namespace

RunGrid target_grid(const TrainingState& source, const SizeChange& change) {
  RunGrid grid = source.grid;
  grid.sizes = new_sizes(source.grid.sizes, change);
  set_chunks_of_layout(change, grid.sizes);
  if (grid.sizes.virtual_pipeline_parallel > 1 && grid.sizes.pipeline_parallel == 1) {
    refuse("--vpp " + std::to_string(grid.sizes.virtual_pipeline_parallel) +
           " needs --pp above 1: it is the number of model chunks on each pipeline rank");
  }
  if (source.facts.divided_stack.empty() && grid.sizes.pipeline_parallel > 1) {
    refuse("--pp " + std::to_string(grid.sizes.pipeline_parallel) +
           ": Megatron cannot save a model with an encoder and a decoder (T5) on more than one "
           "pipeline stage: it numbers their layers wrongly");
  }
  grid.pipeline = new_pipeline(source.grid.pipeline, grid.sizes, change);
  check_experts(source, grid.sizes);
  check_stages(grid, source.grid, change);
  state_in_pattern(source, grid.pipeline);
  check_model(source, grid);
  check_splits(source, grid, target_vocabulary(source, grid, change));
  require_cuts_between_blocks(source, grid);
  grid.optimizer_instances = 1;  // further ones are copies
  return grid;
}

// Rows of the vocabulary: tokens, and padding behind them.
uint64_t token_count(const ModelFacts& facts, uint64_t stored) {
  const uint64_t stated = facts.vocabulary.value_or(stored);
  return facts.has_end_token && stated < stored ? stated + 1 : stated;
}

std::optional<std::string> contradicted_vocabulary(const TrainingState& state) {
  const TrainedParam* const param = stored_vocabulary(state);
  if (param == nullptr || !state.facts.vocabulary) return std::nullopt;
  const uint64_t stored = param->weight->shape[0], stated = *state.facts.vocabulary;
  std::string problem = "is " + std::to_string(stated) + ", but " + param->info.name + " has " +
                        std::to_string(stored) + " rows";
  if (stated > stored) return problem;
  const uint64_t multiple = state.facts.vocabulary_divisor * state.grid.sizes.tensor_parallel;
  const uint64_t padding = stored - token_count(state.facts, stored);
  if (padding < multiple || is_of_larger_size(state, stored)) return std::nullopt;
  return problem + ": " + std::to_string(padding) +
         " of padding, which args.make_vocab_size_divisible_by " +
         std::to_string(state.facts.vocabulary_divisor) + " at TP " +
         std::to_string(state.grid.sizes.tensor_parallel) + " keeps below " +
         std::to_string(multiple);
}

uint64_t target_vocabulary(const TrainingState& source, const RunGrid& grid,
                           const SizeChange& change) {
  const TrainedParam* const param = stored_vocabulary(source);
  if (param == nullptr) return 0;
  refuse_other_rows(source, *param);
  const uint64_t stored = param->weight->shape[0];
  const uint32_t tensor = grid.sizes.tensor_parallel;
  const bool is_as_before = tensor == source.grid.sizes.tensor_parallel && !change.vocabulary;
  if (is_as_before) return stored;
  const ModelFacts& facts = source.facts;
  if (change.vocabulary && facts.vocabulary && *change.vocabulary < *facts.vocabulary) {
    refuse("--vocab-size " + std::to_string(*change.vocabulary) + " is below args.vocab_size, " +
           std::to_string(*facts.vocabulary) + ": rows below it are not padding");
  }
  const auto rows = change.vocabulary ? change.vocabulary : facts.vocabulary;
  if (rows && *rows <= stored) {
    const uint64_t tokens = change.vocabulary ? *rows : token_count(facts, stored);
    const uint64_t padded = padded_vocabulary(tokens, facts.vocabulary_divisor, tensor);
    if (padded != stored && !change.vocabulary) refuse_vocabulary(source);
    return padded;
  }
  if (rows && change.vocabulary) {
    refuse("--vocab-size " + std::to_string(*rows) + " is above the " + std::to_string(stored) +
           " rows that are stored");
  }
  if (stored % tensor == 0) return stored;
  refuse("the " + std::to_string(stored) + " rows of the vocabulary are not a multiple of --tp " +
             std::to_string(tensor) + ", and args do not say how many of them are padding",
         "--vocab-size gives the true size");
}

}  // namespace optim
