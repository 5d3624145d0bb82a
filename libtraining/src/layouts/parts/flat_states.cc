// Ranges of a flat buffer become boxes of parameters, which are joined over tensor parallel ranks.
#include "layouts/parts/flat_states.h"

#include <algorithm>
#include <deque>

#include <ckpt/flat_range.h>

#include "grid/build_state.h"
#include "layouts/parts/tensor_parts.h"
#include "state/words.h"

namespace optim {
namespace {

[[noreturn]] void corrupt(const TensorEntry& tensor, std::string problem) {
  throw Error(ErrorCode::Corrupt, {tensor.file, std::nullopt, tensor.key}, std::move(problem));
}

// Named after its state and its parameter, nothing else has a state's name.
bool is_state_name(const std::string& state) {
  return !state.empty() && state.find('.') == state.npos && state != kMasterState;
}

uint64_t begin_of(const Chunk* chunk) { return chunk->box.offsets[0]; }
uint64_t end_of(const Chunk* chunk) { return chunk->box.offsets[0] + chunk->box.sizes[0]; }

// The elements of a chunk from its `first` on, as a row-major box of a parameter.
Chunk as_box(const Chunk& flat, uint64_t first, Box box, DType dtype) {
  Chunk chunk = flat;
  const uint64_t stride = flat.view ? flat.view->strides[0] : 1;
  const uint64_t begin = (flat.view ? flat.view->offset : 0) + first * stride;
  if (stride == 1) {
    chunk.view = nullptr;
    chunk.payload_offset_bytes += begin * ckpt::bytes_per_element(dtype);
  } else {
    ckpt::StridedView view{begin, ckpt::row_major_strides(box.sizes)};
    for (uint64_t& each : view.strides) each *= stride;
    chunk.view = std::make_shared<const ckpt::StridedView>(std::move(view));
  }
  chunk.box = std::move(box);
  return chunk;
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
  TrainedParam& param = state_.params[index];
  const Extents shape = buffers_.placement().shape_on_rank(index);
  const FlatTensors& first = *pieces_[index].front().tensors;
  for (const Stored& piece : pieces_[index]) {
    for (const auto& [state, tensor] : *piece.tensors) {
      if (!first.contains(state)) {
        corrupt(tensor.entry(), "other buffers do not have this state");
      }
    }
  }
  for (const auto& [state, tensor] : first) {
    if (!is_state_name(state)) {
      corrupt(tensor.entry(), "'" + ckpt::escaped(state) + "' is not a name of optimizer state");
    }
    const DType dtype = tensor.entry().dtype;
    const bool is_master = state == kDistributedMaster;
    if (is_master ? !is_master_dtype(dtype) : !is_state_dtype(dtype)) {
      throw Error(ErrorCode::Unsupported, {tensor.entry().file, std::nullopt, tensor.entry().key},
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
    corrupt(stored,
            "there is no '" + std::string(state) + "' beside it, which the optimizer keeps");
  };
  require(param.master != nullptr, kDistributedMaster);
  if (buffers_.rule_of(param.optimizer) != "adam") return;
  const auto moment = missing_moment(param);
  require(!moment, moment.value_or(""));
}

TensorRef FlatStates::join_state(uint32_t index, const std::string& state,
                                 const Extents& shape) const {
  const TrainedParam& param = state_.params[index];
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
      corrupt(piece.tensors->begin()->second.entry(),
              "there is no '" + ckpt::escaped(state) + "' beside it, which other buffers have");
    }
    parts.add(key, piece.tensor_rank, slices.emplace_back(found->second.slice(piece.begin, shape)));
  }
  parts.compare_copies(source_, key, tensor_ranks == 1);
  return parts.join(key, {param.sharing, tensor_ranks});
}

FlatTensor::FlatTensor(const TensorEntry& tensor) : tensor_(&tensor) {
  if (tensor.shape.size() != 1) {
    corrupt(tensor, "has " + std::to_string(tensor.shape.size()) +
                        " dimensions, but a flat buffer has one");
  }
  for (const Chunk& chunk : tensor.chunks) chunks_.push_back(&chunk);
  if (!std::ranges::is_sorted(chunks_, {}, begin_of)) std::ranges::sort(chunks_, {}, begin_of);
}

TensorEntry FlatTensor::slice(uint64_t begin, const Extents& shape) const {
  return {tensor_->file, tensor_->key, tensor_->dtype, shape, chunks_of(begin, shape)};
}

std::vector<Chunk> FlatTensor::chunks_of(uint64_t begin, const Extents& shape) const {
  const uint64_t count = ckpt::element_count(shape);
  if (begin > element_count() || count > element_count() - begin) {
    corrupt(*tensor_, "has " + std::to_string(element_count()) + " elements, but a parameter of " +
                          std::to_string(count) + " starts at " + std::to_string(begin));
  }
  std::vector<Chunk> chunks;
  const Box whole = ckpt::whole(shape);
  uint64_t next = begin;  // the first element that has no place yet
  auto at = std::ranges::upper_bound(chunks_, begin, {}, begin_of);
  if (at != chunks_.begin()) --at;
  for (; at != chunks_.end() && next < begin + count && begin_of(*at) <= next; ++at) {
    const uint64_t end = std::min(end_of(*at), begin + count);
    if (end <= next) continue;
    uint64_t first = next - begin_of(*at);
    if (end - next == count) {  // nearly always
      chunks.push_back(as_box(**at, first, whole, tensor_->dtype));
      return chunks;
    }
    for (Box& box : ckpt::boxes_of_flat_range(whole, next - begin, end - next)) {
      const uint64_t elements = ckpt::element_count(box.sizes);
      chunks.push_back(as_box(**at, first, std::move(box), tensor_->dtype));
      first += elements;
    }
    next = end;
  }
  if (next != begin + count) {
    corrupt(*tensor_, "its element " + std::to_string(next) + " is in no chunk");
  }
  return chunks;
}

}  // namespace optim
