#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include <kernels/element_type.h>

namespace kernels {

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
