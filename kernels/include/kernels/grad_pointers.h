#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include <kernels/muon.h>
#include <kernels/tensor_table.h>

namespace kernels {

// Writes new gradients' pointers into tables in device memory, and whether all pointers of an entry
// are aligned with them. The pointers travel as launch arguments: `grads` is read before the call
// returns, so that no page-locked memory is needed and nothing waits.
cudaError_t set_grads(TensorSlot* slots, const void* const* grads, uint32_t count,
                      cudaStream_t stream);
cudaError_t set_grads(MuonMatrix* matrices, const void* const* grads, uint32_t count,
                      cudaStream_t stream);

constexpr uint32_t kGradsPerLaunch = 448;  // arguments of a launch: at most 4 KiB

}  // namespace kernels
