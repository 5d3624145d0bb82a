#pragma once

#include <cuda_runtime_api.h>

#include <kernels/element.h>
#include <kernels/rules.h>
#include <kernels/step_control.h>
#include <kernels/tensor_table.h>

namespace kernels {

// How the matrices of one table are stored.
struct MuonTypes {
  ElementType grad;      // F32, BF16 or F16
  ElementType main;      // F32 or SplitF32
  ElementType momentum;  // F32 or BF16
  ElementType model;     // BF16, F16 or None
  ElementType iterate;   // what Newton-Schulz computes in: BF16, F16 or F32
};

// One matrix that Newton-Schulz orthogonalises: a weight, or the query, key or value rows of a
// fused weight. Its row r is row r / part_rows * group_rows + first_row + r % part_rows of the
// weight, so that no part is copied; a whole weight has part_rows == group_rows. Pointers lead to
// the whole weight's tensors, all of `columns` columns; `iterate` to the matrix itself, contiguous.
struct MuonMatrix {
  const void* grad;
  void* main;
  void* remainder;  // SplitF32's int16 half
  void* momentum;
  void* model;         // may be null
  void* iterate;       // Newton-Schulz's input
  const void* update;  // Newton-Schulz's output, of type iterate
  int64_t rows, columns;
  uint32_t part_rows, group_rows, first_row;
  float scale, extra_scale;  // the update is multiplied by one, then by the other
  uint32_t group;            // index into the RuleScalars and the GroupSettings
  uint32_t first_chunk;
  uint32_t is_aligned;  // 1: pointers are multiples of 16 bytes, a part's columns one of 8
};

CKPT_HOST_DEVICE constexpr int64_t count_of(const MuonMatrix& m) { return m.rows * m.columns; }

CKPT_HOST_DEVICE bool is_aligned(const MuonMatrix& m) {
  const auto pointers =
      reinterpret_cast<uintptr_t>(m.grad) | reinterpret_cast<uintptr_t>(m.main) |
      reinterpret_cast<uintptr_t>(m.remainder) | reinterpret_cast<uintptr_t>(m.momentum) |
      reinterpret_cast<uintptr_t>(m.model) | reinterpret_cast<uintptr_t>(m.iterate) |
      reinterpret_cast<uintptr_t>(m.update);
  const bool is_part = m.part_rows != m.group_rows;
  return pointers % 16 == 0 && (!is_part || m.columns % 8 == 0);
}

// Where element `i` of the matrix lies in the weight.
CKPT_HOST_DEVICE int64_t place_in_weight(const MuonMatrix& m, int64_t i) {
  if (m.part_rows == m.group_rows) return i;
  const int64_t row = i / m.columns;
  const int64_t weight_row = row / m.part_rows * m.group_rows + m.first_row + row % m.part_rows;
  return weight_row * m.columns + i % m.columns;
}

// The pieces of work of all matrices, as fill_chunks() does it for tensors.
inline void fill_chunks(MuonMatrix* matrices, uint32_t matrix_count, Chunk* chunks) {
  uint32_t filled = 0;
  for (uint32_t m = 0; m < matrix_count; ++m) {
    matrices[m].first_chunk = filled;
    const auto count = static_cast<uint32_t>(chunks_of(count_of(matrices[m])));
    for (uint32_t index = 0; index < count; ++index) chunks[filled++] = {m, index};
  }
}

struct MuonRequest {
  const MuonMatrix* matrices;  // this and all below: device memory
  const Chunk* chunks;
  double* partials;            // chunk_count
  float* divisors;             // matrix_count: max(norm, 1e-7) of each direction
  const RuleScalars* scalars;  // by MuonMatrix::group
  const GroupSettings* groups;
  const StepControl* control;
  uint32_t matrix_count, chunk_count;
  MuonTypes types;
  int block_count;  // from persistent_blocks()
};

// Before Newton-Schulz: momentum, then direction / max(|direction|, 1e-7) into `iterate`. The norm
// is summed in fp64 in a fixed order, as statistics are, muon_vector() neighbours a thread at a
// time.
cudaError_t muon_prepare(const MuonRequest& request, cudaStream_t stream);

// After it: decay, p -= lr update scale extra_scale, and the model's rounded copy.
cudaError_t muon_finish(const MuonRequest& request, cudaStream_t stream);

// Both queue on `stream`, allocate nothing, wait for nothing, and change nothing where
// control->skip is set. cudaErrorInvalidValue for types that cannot be.

CKPT_HOST_DEVICE constexpr int muon_vector(ElementType grad, ElementType momentum) {
  return bytes_of(grad) == 4 || bytes_of(momentum) == 4 ? 4 : 8;
}

constexpr float kMuonNormMin = 1e-7F;  // a zero gradient stays zero

// One element of a weight, in fp32.
struct MuonElement {
  float grad, param, momentum;
};

// What the elements of a matrix share.
struct MuonFactors {
  RuleScalars scalars;
  float inverse_loss_scale, clip;
  bool nesterov;
};

CKPT_HOST_DEVICE float muon_grad(const MuonFactors& f, const MuonElement& e) {
  const float grad = e.grad * f.inverse_loss_scale * f.clip;
  return f.scalars.l2 != 0 ? fmaf(f.scalars.l2, e.param, grad) : grad;
}

// What is orthogonalised, from the new momentum as it is stored.
CKPT_HOST_DEVICE float direction_of(const MuonFactors& f, const MuonElement& e) {
  return f.nesterov ? muon_direction(f.scalars, e.momentum, muon_grad(f, e)) : e.momentum;
}

// The parameter after an update by `orthogonal`.
CKPT_HOST_DEVICE float next_param(const MuonFactors& f, const MuonMatrix& m, float param,
                                  float orthogonal) {
  return muon_apply(f.scalars, param, orthogonal * m.scale * m.extra_scale);
}

}  // namespace kernels
