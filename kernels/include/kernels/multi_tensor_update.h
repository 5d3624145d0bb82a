#pragma once

#include <cuda_runtime_api.h>

#include <kernels/rules.h>
#include <kernels/step_control.h>
#include <kernels/tensor_table.h>

namespace kernels {

// Updates every tensor of the table, in one pass over memory: gradient unscaled and clipped, rule,
// states and parameter written, the model's rounded copy, too. Tables with scaled tensors take a
// pass before it that finds the new scales (TransformerEngine's format has one scale per tensor).
// Nothing changes where control->skip is set.
struct UpdateRequest {
  TensorTable table;
  RuleKind rule;               // not Muon
  const RuleScalars* scalars;  // device memory, by TensorSlot::group
  const StepControl* control;  // device memory
  int block_count;             // from persistent_blocks()
};

// Queues the update on `stream`; allocates nothing, waits for nothing, can be captured in a graph.
// cudaErrorInvalidValue for types or a rule that cannot be; else the first error of a launch.
cudaError_t multi_tensor_update(const UpdateRequest& request, cudaStream_t stream);

// Whether a table may have these types under this rule.
bool can_update(const TensorTypes& types, RuleKind rule);

// Of the current device; and blocks that fill it, a few per multiprocessor.
cudaError_t multiprocessor_count(int* count);
cudaError_t persistent_blocks(int* block_count);

// cudaSuccess where these kernels are compiled for the current device.
cudaError_t has_kernel_image();

}  // namespace kernels
