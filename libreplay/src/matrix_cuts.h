#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include <ckpt/box.h>
#include <training/training_state.h>

namespace optim {

// How the matrices of a training state are put before rules that need whole ones, as the ranks of
// the run had them: where tensor-parallel ranks orthogonalised their own parts (muon_tp_mode
// blockwise, and rules without such modes), each part is a parameter of its own; where they
// gathered a matrix (duplicated, distributed), its rows are in the order of the ranks.
class Cuts {
 public:
  Cuts() = default;
  // Throws Unsupported where ranks shared a matrix in a way that is not known.
  Cuts(const TrainingState& state, const OptimizerConfig& config);

  // What the optimizer has of a parameter: itself, or its pieces, with names of their own.
  std::vector<ParamInfo> pieces_of(const ParamInfo& whole) const;
  bool is_piece(const std::string& name) const { return pieces_.contains(name); }
  // The parameter of which the optimizer has this; itself where it is no piece.
  const std::string& whole_name(const std::string& name) const;
  ParamInfo whole_of(const ParamInfo& piece) const;
  std::vector<int64_t> whole_shape(const std::string& name, at::IntArrayRef shape) const;

  // Of a tensor of the whole's shape; contiguous, with storage of its own where it is a piece.
  // Throws Unsupported for a state of a piece that has another shape.
  at::Tensor piece(const at::Tensor& whole, const std::string& name) const;
  void put(const at::Tensor& piece, const std::string& name, const at::Tensor& whole) const;

 private:
  struct Piece {
    std::string param;
    std::vector<int64_t> whole_shape, shape;
    int64_t dim = 0;               // along which the boxes are put together
    std::vector<ckpt::Box> boxes;  // of the whole
  };
  void add(const TrainedParam& param, const std::string& name, std::vector<ckpt::Box> boxes);

  std::map<std::string, Piece> pieces_;                    // by their names
  std::map<std::string, std::vector<std::string>> names_;  // [param] of its pieces
};

}  // namespace optim
