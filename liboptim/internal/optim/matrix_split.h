#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <optim/newton_schulz_options.h>
#include <optim/process_groups.h>
#include <optim/update_modes.h>

// Matrices whose parts lie on several tensor-parallel ranks, and Newton-Schulz over them.
namespace optim {

// The ranks that hold the parts of a matrix. All of them must call in the same order.
class MatrixRanks {
 public:
  virtual ~MatrixRanks();
  virtual int rank() const = 0;
  // Each rank's contiguous tensor, in the order of ranks. `counts`: their elements, by rank; all
  // are of one type. They come back flat. Throws Error(IoFailure).
  virtual std::vector<at::Tensor> all_gather(const at::Tensor& mine,
                                             std::span<const int64_t> counts) = 0;
};
// Over a c10d process group, whatever its backend; null is one rank.
std::shared_ptr<MatrixRanks> make_matrix_ranks(const ProcessGroupPtr& group);

// A matrix that is cut along `dim`, in the order of ranks, into parts of `extents` rows (dim 0) or
// columns (dim 1), which need not be equal.
struct MatrixSplit {
  MuonTpMode mode = MuonTpMode::Duplicated;  // not Blockwise, where every part is a matrix
  int dim = 0;                               // Megatron's partition_dim
  std::vector<int64_t> extents = {};         // each at least 1
  std::shared_ptr<MatrixRanks> ranks = {};

  int64_t whole_extent() const;
};

// newton_schulz() of a whole matrix, of which this rank has `part` and gets its part of the result.
// Collective.
// Duplicated: every rank gathers the matrix and has the bits of newton_schulz(whole).
// Distributed: the iteration runs over the dimension that is not cut, whichever is longer. Each
// rank multiplies its own part; the parts of a Gram matrix are gathered and added in fp32 in the
// order of ranks, then rounded to their type, the norm in fp64: the same bits in every run and on
// all ranks, within rounding those of newton_schulz(whole).
// Throws what newton_schulz() throws, and Error(InvalidArgument) for a part that does not fit
// `split` and for Blockwise.
// Source: newton_schulz_tp of emerging_optimizers 0.3.
at::Tensor newton_schulz_tp(const at::Tensor& part, const NewtonSchulzOptions& options,
                            const MatrixSplit& split);

}  // namespace optim
