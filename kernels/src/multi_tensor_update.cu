#include <kernels/multi_tensor_update.h>

#include "update_kernel.cuh"

namespace kernels {
namespace {

const RuleLaunches* launches_of(RuleKind rule) {
  switch (rule) {
    case RuleKind::Adam: return &kAdamLaunches;
    case RuleKind::FusedAdam: return &kFusedAdamLaunches;
    case RuleKind::Sgd: return &kSgdLaunches;
    case RuleKind::Lion: return &kLionLaunches;
    case RuleKind::Muon: return nullptr;
  }
  return nullptr;
}

bool has_scaled(const TensorTypes& types) {
  return is_scaled(types.main) || is_scaled(types.state[0]) || is_scaled(types.state[1]);
}

constexpr unsigned kScaleThreads = 128;

// The scales that the second pass wrote with become those that the next step reads with.
__global__ void keep_scales(const TensorTable table, const StepControl* control) {
  if (control->skip != 0) return;
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= table.slot_count) return;
  const ElementType stored[] = {table.types.main, table.types.state[0], table.types.state[1]};
  for (int s = 0; s < 3; ++s) {
    if (!is_scaled(stored[s])) continue;
    StateScale& scale = *table.slots[i].scale[s];
    scale.scale = scale_for(stored[s], float_of_bits(scale.absmax_bits));
    scale.absmax_bits = 0;
  }
}

bool is_model_type(ElementType type) {
  return type == ElementType::None || type == ElementType::BF16 || type == ElementType::F16;
}

}  // namespace

bool can_update(const TensorTypes& types, RuleKind rule) {
  const auto is_state = [](ElementType type) {
    return type == ElementType::F32 || type == ElementType::BF16 || is_scaled(type);
  };
  const bool is_adam = rule == RuleKind::Adam || rule == RuleKind::FusedAdam;
  const bool states_fit = is_adam
                              ? is_state(types.state[0]) && is_state(types.state[1])
                              : (is_state(types.state[0]) ||
                                 (types.state[0] == ElementType::None && rule == RuleKind::Sgd)) &&
                                    types.state[1] == ElementType::None;
  const bool grad_fits = types.grad == ElementType::F32 || types.grad == ElementType::BF16 ||
                         types.grad == ElementType::F16;
  const bool main_fits = types.main == ElementType::F32 || types.main == ElementType::BF16 ||
                         types.main == ElementType::F16 || types.main == ElementType::SplitF32;
  return launches_of(rule) != nullptr && states_fit && grad_fits && main_fits &&
         is_model_type(types.model);
}

cudaError_t multi_tensor_update(const UpdateRequest& request, cudaStream_t stream) {
  const TensorTable& table = request.table;
  if (!can_update(table.types, request.rule) || request.block_count < 1) {
    return cudaErrorInvalidValue;
  }
  if (table.chunk_count == 0) return cudaSuccess;
  const RuleLaunches& launches = *launches_of(request.rule);
  const LaunchShape shape = {blocks_for(table.chunk_count, request.block_count), kChunkThreads,
                             stream};
  if (!has_scaled(table.types)) return launches.update(request, shape);
  const LaunchShape per_slot = {(table.slot_count + kScaleThreads - 1) / kScaleThreads,
                                kScaleThreads, stream};
  return launch_in_order([&] { return launches.absmax(request, shape); },
                         [&] { return launches.update(request, shape); },
                         [&] { return launch(per_slot, keep_scales, table, request.control); });
}

cudaError_t has_kernel_image() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, keep_scales);
}

cudaError_t multiprocessor_count(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

cudaError_t persistent_blocks(int* block_count) {
  int processors = 0;
  const cudaError_t error = multiprocessor_count(&processors);
  if (error == cudaSuccess) *block_count = processors * kBlocksPerSm;
  return error;
}

}  // namespace kernels
