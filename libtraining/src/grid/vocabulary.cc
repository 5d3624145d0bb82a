// Rows of the vocabulary: tokens, and padding behind them.
#include "grid/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ckpt/error.h>
#include <training/size_change.h>

#include "grid/placement.h"
#include "parallel/split.h"
#include "sharding/refuse.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;

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
