#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <training/opened_training.h>
#include <training/training_state.h>

#include "grid/flat_buffers.h"
#include "layouts/parts/flat_tensor.h"

// Masters and states of a DistributedOptimizer, from the flat buffers of model-parallel ranks to
// tensors of whole parameters. By reference: of copies alone bytes are read, to compare them.
namespace optim {

// What is stored of one buffer, or of a bucket of it, by state: param, exp_avg, exp_avg_sq.
using FlatTensors = std::map<std::string, FlatTensor>;

class FlatStates {
 public:
  FlatStates(const OpenedTraining& source, const FlatBuffers& buffers, TrainingState& view)
      : source_(source), buffers_(buffers), view_(view), pieces_(view.params.size()) {}

  // Where a rank has a parameter's part.
  struct Piece {
    const RankCoordinates& rank;
    const FlatTensors& tensors;  // must outlive this
    uint64_t begin = 0;          // in each of them
  };
  void add(uint32_t param, const Piece& piece);

  // When all were added: master and states of each parameter of `view`. Throws Corrupt where a
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
  TrainingState& view_;
  std::vector<std::vector<Stored>> pieces_;  // [param]
  // Of 10^6 ranges, which the training state keeps or lets go of together.
  std::shared_ptr<std::deque<ckpt::TensorEntry>> joined_ =
      std::make_shared<std::deque<ckpt::TensorEntry>>();
};

}  // namespace optim
