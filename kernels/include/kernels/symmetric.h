#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include <kernels/element_type.h>
#include <kernels/host_device.h>

namespace kernels {

// A batch of symmetric matrices of `edge` x `edge` elements of F32 or a two-byte type, one behind
// the other, of which only the blocks on and below the diagonal have been computed (column-major;
// row-major: on and above).
struct MirrorRequest {
  void* matrices;  // device memory
  ElementType type;
  int64_t edge, batch;
  int64_t block;  // a multiple of kMirrorTile
};
constexpr int kMirrorTile = 32;

// Whether element (row, column) lies below the diagonal's blocks, so that it is copied to
// (column, row).
CKPT_HOST_DEVICE bool is_mirrored(int64_t row, int64_t column, int64_t block) {
  return row / block > column / block;
}

// Copies those blocks to the other side. Queues on `stream`, waits for nothing.
// cudaErrorInvalidValue for a type or sizes that cannot be.
cudaError_t mirror_blocks(const MirrorRequest& request, cudaStream_t stream);

// sum = p x + q y, element by element: both products and their sum in fp32, rounded once to the
// type. Device memory at multiples of 16 bytes; `sum` overlaps neither x nor y. F32 or F16, not
// scaled. Queues on `stream`; cudaErrorInvalidValue for another type or a negative count.
struct CombineRequest {
  void* sum;
  const void* x;
  const void* y;
  float p, q;
  ElementType type;
  int64_t count;
};
cudaError_t combine(const CombineRequest& request, cudaStream_t stream);

}  // namespace kernels
