#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ckpt/catalog.h>
#include <training/training_state.h>

#include "grid/build_state.h"
#include "grid/flat_buffers.h"
#include "grid/placement.h"

// What Megatron-Core 0.15 to 0.19 does to fully_reshardable state where gradients are in several
// buckets (its issue 5077): it takes the padding at the ends of buckets out of a buffer, and then
// cuts parameters where they were with it. Each parameter is stored as a window over the buffer
// that begins behind its own values, by the padding of all buckets before its own. Pure.
// Source: get_parameter_state_dp_zero and sharded_param_state_fully_reshardable of
// megatron/core/optimizer/distrib_optimizer.py (core 0.18-dev).
namespace optim {

// The flat buffers of a state in its own grid, and what lays them out. Stays where it is made, as
// its parts point into each other; the state must outlive it. Throws as flat_arguments() and
// FlatBuffers do.
struct StateBuffers {
  explicit StateBuffers(const TrainingState& state)
      : placement(state, state.grid),
        params(state.params),
        groups(group_params(state.args(), state.grid.sizes, params)),
        arguments(flat_arguments(state.args(), "args")),
        flat(state, placement, groups, arguments) {}
  StateBuffers(const StateBuffers&) = delete;
  StateBuffers& operator=(const StateBuffers&) = delete;

  Placement placement;
  std::vector<TrainedParam> params;
  std::vector<ParamGroup> groups;
  FlatArguments arguments;
  FlatBuffers flat;
};

// A parameter of a buffer, as a rank has it.
struct WindowedParam {
  uint32_t param = 0;
  ElementRange window;     // what was stored of it, of the buffer without padding
  uint64_t shift = 0;      // by which its own values begin before that
  bool is_stored = false;  // this rank's copy is the one in the files
  ElementRange own() const { return {window.begin - shift, window.end - shift}; }
  bool is_displaced() const { return is_stored && shift != 0; }
};

// Of an optimizer in one place of the model: a stage, a tensor parallel rank, of experts their
// rank.
struct WindowedBuffer {
  RankCoordinates at;
  uint32_t tensor_rank = 0;
  uint64_t element_count = 0;         // of the buffer without padding: beyond it is nothing
  std::vector<WindowedParam> params;  // by where they are in the buffer
};

class BucketWindows {
 public:
  // Throws as flat_arguments() and FlatBuffers do. `state` must outlive it.
  explicit BucketWindows(const TrainingState& state);

  // Those in which a stored parameter is displaced.
  const std::vector<WindowedBuffer>& buffers() const { return displaced_; }
  const FlatBuffers& layout() const { return buffers_.flat; }
  const Placement& placement() const { return buffers_.placement; }

 private:
  void add(uint32_t optimizer, const RankCoordinates& at, uint32_t tensor_rank);
  WindowedParam windowed(const FlatBuffer& buffer, size_t i, const WindowedBuffer& of) const;

  const TrainingState& state_;
  StateBuffers buffers_;
  std::vector<WindowedBuffer> displaced_;
};

// The parts of a displaced parameter's own range that no stored window of its buffer covers.
std::vector<ElementRange> uncovered(const WindowedBuffer& buffer, const WindowedParam& param);

// The elements of boxes of a tensor, in row-major order one box behind the other, as chunks of a
// tensor of one dimension. Reads nothing. Elements that lie in no chunk of the tensor lie in none
// of these. Throws Unsupported where they are in more than 2^22 pieces.
std::vector<ckpt::Chunk> flat_chunks(const ckpt::TensorEntry& tensor,
                                     std::span<const ckpt::Box> boxes);

}  // namespace optim
