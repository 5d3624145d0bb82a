#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <training/opened_training.h>
#include <training/training_state.h>

#include "grid/flat_buffers.h"

// Masters and states of a DistributedOptimizer, from the flat buffers of model-parallel ranks to
// tensors of whole parameters. By reference: of copies alone bytes are read, to compare them.
namespace optim {

// A flat buffer of optimizer state, of which ranges are the tensors of parameters.
class FlatTensor {
 public:
  // `tensor`, of one dimension, must outlive it. Throws Corrupt for another.
  explicit FlatTensor(const ckpt::TensorEntry& tensor);

  const ckpt::TensorEntry& entry() const { return *tensor_; }
  uint64_t element_count() const { return tensor_->shape[0]; }
  // The elements from `begin` on, as a row-major tensor of this shape: each piece of the buffer
  // that is stored is at most 2 * dims - 1 chunks. Reads nothing. Throws Corrupt where elements are
  // beyond the buffer or in none of its chunks.
  ckpt::TensorEntry slice(uint64_t begin, const ckpt::Extents& shape) const;
  // That slice's chunks alone.
  std::vector<ckpt::Chunk> chunks_of(uint64_t begin, const ckpt::Extents& shape) const;

 private:
  const ckpt::TensorEntry* tensor_;
  std::vector<const ckpt::Chunk*> chunks_;  // by where they start
};

// What is stored of one buffer, or of a bucket of it, by state: param, exp_avg, exp_avg_sq.
using FlatTensors = std::map<std::string, FlatTensor>;

class FlatStates {
 public:
  FlatStates(const OpenedTraining& source, const FlatBuffers& buffers, TrainingState& state)
      : source_(source), buffers_(buffers), state_(state), pieces_(state.params.size()) {}

  // Where a rank has a parameter's part.
  struct Piece {
    const RankCoordinates& rank;
    const FlatTensors& tensors;  // must outlive this
    uint64_t begin = 0;          // in each of them
  };
  void add(uint32_t param, const Piece& piece);

  // When all were added: master and states of each parameter of `state`. Throws Corrupt where a
  // part, a master or a moment is missing or copies differ, Unsupported for types that states do
  // not have.
  void join();

 private:
  struct Stored {
    uint32_t tensor_rank;
    const FlatTensors* tensors;
    uint64_t begin;
  };
  void join(uint32_t param);
  void require_states(const TrainedParam& param, const ckpt::TensorEntry& stored) const;
  // `shape`: of the parameter, on a tensor parallel rank.
  TensorRef join_state(uint32_t param, const std::string& state, const ckpt::Extents& shape) const;

  const OpenedTraining& source_;
  const FlatBuffers& buffers_;
  TrainingState& state_;
  std::vector<std::vector<Stored>> pieces_;  // [param]
  // Of 10^6 ranges, which the training state keeps or lets go of together.
  std::shared_ptr<std::deque<ckpt::TensorEntry>> joined_ =
      std::make_shared<std::deque<ckpt::TensorEntry>>();
};

}  // namespace optim
