// Slices of buffers, joined over tensor parallel ranks.
#include "layouts/parts/flat_states.h"

#include <algorithm>
#include <deque>

#include <ckpt/error.h>

#include "grid/layer_wise_view.h"
#include "layouts/parts/tensor_parts.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::TensorEntry;

[[noreturn]] void refuse(ErrorCode code, const TensorEntry& tensor, std::string problem) {
  throw Error(code, {tensor.file, std::nullopt, tensor.key}, std::move(problem));
}

// Named after its state and its parameter, nothing else has a state's name.
bool is_state_name(const std::string& state) {
  return !state.empty() && state.find('.') == state.npos && state != kMasterState;
}

}  // namespace

void FlatStates::add(uint32_t param, const Piece& piece) {
  const uint32_t tensor_rank = buffers_.placement().tensor_rank(param, piece.rank);
  pieces_[param].push_back({tensor_rank, &piece.tensors, piece.begin});
}

void FlatStates::join() {
  for (uint32_t param = 0; param < pieces_.size(); ++param) {
    if (!pieces_[param].empty()) join(param);
  }
}

void FlatStates::join(uint32_t index) {
  TrainedParam& param = view_.params[index];
  const ckpt::Extents shape = buffers_.placement().shape_on_rank(index);
  const FlatTensors& first = *pieces_[index].front().tensors;
  for (const Stored& piece : pieces_[index]) {
    for (const auto& [state, tensor] : *piece.tensors) {
      if (!first.contains(state)) {
        refuse(ErrorCode::Corrupt, tensor.entry(), "other buffers do not have this state");
      }
    }
  }
  for (const auto& [state, tensor] : first) {
    if (!is_state_name(state)) {
      refuse(ErrorCode::Corrupt, tensor.entry(),
             "'" + ckpt::escaped(state) + "' is not a name of optimizer state");
    }
    const ckpt::DType dtype = tensor.entry().dtype;
    const bool is_master = state == kDistributedMaster;
    if (is_master ? !is_master_dtype(dtype) : !is_state_dtype(dtype)) {
      refuse(ErrorCode::Unsupported, tensor.entry(),
             (is_master ? "the masters are not float32, but " : "optimizer state of type ") +
                 std::string(ckpt::name(dtype)));
    }
    TensorRef joined = join_state(index, state, shape);
    if (is_master) {
      param.master = std::move(joined);
    } else {
      param.states.push_back({state, std::move(joined)});
    }
  }
  require_states(param, first.begin()->second.entry());
}

// `stored`: one that is there.
void FlatStates::require_states(const TrainedParam& param, const TensorEntry& stored) const {
  const auto require = [&](bool is_there, std::string_view state) {
    if (is_there) return;
    refuse(ErrorCode::Corrupt, stored,
           "there is no '" + std::string(state) + "' beside it, which the optimizer keeps");
  };
  require(param.master != nullptr, kDistributedMaster);
  if (buffers_.rule_of(param.optimizer) != "adam") return;
  const auto moment = missing_moment(param);
  require(!moment, moment.value_or(""));
}

TensorRef FlatStates::join_state(uint32_t index, const std::string& state,
                                 const ckpt::Extents& shape) const {
  const TrainedParam& param = view_.params[index];
  const Placement& placement = buffers_.placement();
  std::string key = state_key(state == kDistributedMaster ? kMasterState : state, param.info.name);
  const uint32_t tensor_ranks = placement.tensor_ranks(index);
  if (pieces_[index].size() == 1 && tensor_ranks == 1) {
    const Stored& piece = pieces_[index].front();
    const FlatTensor& flat = piece.tensors->at(state);
    return {
        joined_,
        &joined_->emplace_back(TensorEntry{
            {}, std::move(key), flat.entry().dtype, shape, flat.chunks_of(piece.begin, shape)})};
  }
  std::deque<TensorEntry> slices;
  TensorParts parts;
  for (const Stored& piece : pieces_[index]) {
    const auto found = piece.tensors->find(state);
    if (found == piece.tensors->end()) {
      refuse(ErrorCode::Corrupt, piece.tensors->begin()->second.entry(),
             "there is no '" + ckpt::escaped(state) + "' beside it, which other buffers have");
    }
    parts.add(key, piece.tensor_rank, slices.emplace_back(found->second.slice(piece.begin, shape)));
  }
  parts.compare_copies(source_, key, tensor_ranks == 1);
  return parts.join(key, {param.sharing, tensor_ranks});
}

}  // namespace optim
