// Attributes of masters, grids of chunks, rules.
#include "grid/sharing_of_params.h"

#include <algorithm>
#include <set>

#include "grid/build_state.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "model/megatron_keys.h"
#include "model/model_rules.h"
#include "model/tensor_names.h"
#include "parallel/rank_grid.h"
#include "state/words.h"

namespace optim {
namespace {

// `shape`: of the part of each of so many ranks.
TensorSharing by_rule(const TrainingState& state, const std::string& name, const Extents& shape,
                      uint32_t ranks = 1) {
  const bool has_halves = is_gated(state, name) && !is_in_blocks(state, name);
  return sharing_by_rule(name, shape, rules_of(state), {has_halves, ranks});
}

[[noreturn]] void refuse_unknown(const TrainingState& state, const std::string& name,
                                 const std::string& problem) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = name}, problem,
              enough_row(name, {}, rules_of(state)));
}

// Of a whole tensor whose parts are cut like this on each of so many ranks.
Split split_of_whole(const Split& split_on_rank, uint32_t tensor_ranks) {
  Split whole = split_on_rank;
  for (uint64_t& section : whole.sections) section *= tensor_ranks;
  return whole;
}

// {tensor_model_parallel, partition_dim} as Megatron sets them; nullopt: nothing is stated.
std::optional<TensorSharing> by_attributes(const Value& attributes, const Extents& shape) {
  if (!attributes.is(Kind::Dict)) return std::nullopt;
  const auto flag = attributes.find("tensor_model_parallel");
  const auto dim = attributes.find("partition_dim");
  if (!flag || !flag->is(Kind::Bool) || !dim || !dim->is(Kind::Int)) return std::nullopt;
  if (!flag->as_bool()) return TensorSharing{true};
  if (dim->as_int() < 0 || static_cast<uint64_t>(dim->as_int()) >= shape.size()) {
    return std::nullopt;
  }
  const auto axis = static_cast<size_t>(dim->as_int());
  return TensorSharing{true, one_section(axis, shape[axis])};
}

// TransformerEngine's experts state the same dimension for all their tensors; the offset that a
// learnable softmax has for each head (--softmax-type learnable) states none.
bool states_wrongly(const std::string& name) {
  return expert_in(name) || name.ends_with(".core_attention.softmax_offset");
}

// Offsets and sizes of chunks along one dimension, where these are blocks of one size.
std::optional<uint64_t> block_count(const TensorEntry& tensor, size_t dim) {
  std::set<uint64_t> offsets;
  const uint64_t size = tensor.chunks[0].box.sizes[dim];
  for (const Chunk& chunk : tensor.chunks) {
    if (size == 0 || chunk.box.sizes[dim] != size || chunk.box.offsets[dim] % size != 0) {
      return std::nullopt;
    }
    offsets.insert(chunk.box.offsets[dim]);
  }
  return offsets.size();
}

}  // namespace

TensorSharing sharing_of(const TrainingState& state, const TrainedParam& param,
                         uint32_t tensor_ranks, const ValueTree& common) {
  const std::string& name = param.info.name;
  const Extents& on_rank = param.weight->shape;
  TensorSharing rule = by_rule(state, name, on_rank, tensor_ranks);
  const auto stated = state.attributes.find(state_key(kMasterState, name));
  // Of rows of several projections, a dimension alone does not say how they are shared.
  const ModelRule* const segmented = rules_of(state).find_segmented(name);
  if (stated != state.attributes.end() && segmented == nullptr) {
    const auto known = by_attributes(common.value(stated->second), on_rank);
    const bool agrees = known && rule.is_known && known->is_split() == rule.is_split() &&
                        (!rule.is_split() || rule.split->dim == known->split->dim);
    if (known && !agrees && !(rule.is_known && states_wrongly(name))) rule = *known;
  }
  if (!rule.is_known && tensor_ranks > 1) {
    refuse_unknown(state, name,
                   segmented == nullptr
                       ? "it is not known how tensor-parallel ranks share it"
                       : "its rows on each of " + std::to_string(tensor_ranks) +
                             " tensor-parallel ranks are not those of the segments that args "
                             "describe: " +
                             segments_in_words(*segmented));
  }
  if (rule.is_split()) rule.split = split_of_whole(*rule.split, tensor_ranks);
  return rule;
}

std::string row_for(const TrainingState& state, const std::string& name) {
  const auto param =
      std::ranges::find(state.params, name, [](const TrainedParam& one) { return one.info.name; });
  return enough_row(name, param == state.params.end() ? TensorSharing{} : param->sharing,
                    rules_of(state));
}

TensorSharing sharing_of_chunks(const TrainingState& state, const TrainedParam& param,
                                uint32_t tensor_ranks) {
  const TensorEntry& weight = *param.weight;
  const TensorSharing rule = by_rule(state, param.info.name, weight.shape);
  const bool tells_nothing = weight.chunks.empty() || is_in_blocks(state, param.info.name);
  if (tensor_ranks == 1 || tells_nothing) return rule;
  std::optional<TensorSharing> seen = TensorSharing{true};
  for (size_t dim = 0; dim < weight.shape.size(); ++dim) {
    const auto blocks = block_count(weight, dim);
    if (!blocks) return rule;
    if (*blocks == 1) continue;
    if (seen->is_split()) return rule;  // along two dimensions
    if (*blocks == tensor_ranks) {
      seen->split = one_section(dim, weight.shape[dim]);
    } else if (*blocks == 2 * uint64_t{tensor_ranks}) {
      seen->split = two_halves(dim, weight.shape[dim]);
    } else {
      return rule;
    }
  }
  // Written whole by somebody who did not know better.
  if (!seen->is_split() && rule.is_known) return rule;
  return *seen;
}

}  // namespace optim
