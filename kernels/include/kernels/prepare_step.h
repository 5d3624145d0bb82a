#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include <kernels/device_step.h>
#include <kernels/muon.h>
#include <kernels/rules.h>
#include <kernels/step_control.h>
#include <kernels/tensor_table.h>

namespace kernels {

// Adds up `tensors` (device memory) in a fixed order, fills `control`, then counts the step of
// every group and computes its scalars, or none of that where the step is skipped. One block;
// `group_count` may be 0. Pointers to device memory; nothing waits.
struct StepControlRequest {
  const TensorStats* tensors;
  uint32_t tensor_count;
  uint32_t group_count;
  StepControl* control;
  GroupSettings* groups;
  RuleScalars* scalars;
};
cudaError_t finish_step_control(const StepControlRequest& request, cudaStream_t stream);

// Threads whose sums finish_step_control() adds up in a tree: thread t takes tensors t, t + 256, ..
constexpr int kControlThreads = 256;

// Writes the rates of `group_count` groups, or the host's part of the control. The values travel as
// launch arguments: `rates` is read before the call returns, and nothing waits.
cudaError_t set_rates(GroupSettings* groups, const GroupRates* rates, uint32_t group_count,
                      cudaStream_t stream);
cudaError_t set_control(StepControl* control, const ControlSettings& settings, cudaStream_t stream);

// Writes what `sources` has, from device memory: the groups' rates, and the control's
// inverse_loss_scale.
struct SourcesRequest {
  DeviceSources sources;
  GroupSettings* groups;
  StepControl* control;
  uint32_t group_count;
};
cudaError_t read_sources(const SourcesRequest& request, cudaStream_t stream);

// Writes new gradients' pointers into tables in device memory, and whether all pointers of an entry
// are aligned with them. The pointers travel as launch arguments: `grads` is read before the call
// returns, so that no page-locked memory is needed and nothing waits.
cudaError_t set_grads(TensorSlot* slots, const void* const* grads, uint32_t count,
                      cudaStream_t stream);
cudaError_t set_grads(MuonMatrix* matrices, const void* const* grads, uint32_t count,
                      cudaStream_t stream);

constexpr uint32_t kGradsPerLaunch = 448;  // arguments of a launch: at most 4 KiB

}  // namespace kernels
