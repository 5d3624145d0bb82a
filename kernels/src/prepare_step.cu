#include <kernels/prepare_step.h>

#include "launch.cuh"
#include "stats_sums.cuh"

namespace kernels {

namespace {

static_assert(kControlThreads % 32 == 0);

__global__ void __launch_bounds__(kControlThreads) finish_kernel(const StepControlRequest request) {
  TensorStats mine = {0, 0};
  for (uint32_t i = threadIdx.x; i < request.tensor_count; i += kControlThreads) {
    add_stats(mine, request.tensors[i]);
  }
  const TensorStats total = add_over_block<kControlThreads / 32>(mine);
  if (threadIdx.x == 0) set_control(*request.control, total);
  __syncthreads();
  if (request.control->skip != 0) return;
  for (uint32_t i = threadIdx.x; i < request.group_count; i += kControlThreads) {
    GroupSettings& group = request.groups[i];
    group.step += 1;
    request.scalars[i] = make_scalars(group);
  }
}

constexpr uint32_t kRatesPerLaunch = 128;
struct Rates {
  GroupRates values[kRatesPerLaunch];
};

__global__ void rates_kernel(GroupSettings* groups, const Rates rates, uint32_t count) {
  const uint32_t i = threadIdx.x;
  if (i >= count) return;
  groups[i].lr = rates.values[i].lr;
  groups[i].weight_decay = rates.values[i].weight_decay;
}

__global__ void control_kernel(StepControl* control, const ControlSettings settings) {
  control->inverse_loss_scale = settings.inverse_loss_scale;
  control->max_norm = settings.max_norm;
  control->check_finite = settings.check_finite ? 1 : 0;
}

__global__ void __launch_bounds__(kControlThreads) sources_kernel(const SourcesRequest request) {
  const DeviceSources& from = request.sources;
  if (threadIdx.x == 0 && from.loss_scale != nullptr) {
    request.control->inverse_loss_scale = inverse_of_loss_scale(*from.loss_scale);
  }
  if (from.rates == nullptr) return;
  for (uint32_t g = threadIdx.x; g < request.group_count; g += kControlThreads) {
    GroupSettings& group = request.groups[g];
    const GroupRates rates = from.rates[group.rates_index];
    group.lr = rates.lr;
    group.weight_decay = rates.weight_decay;
  }
}

struct GradPointers {
  const void* values[kGradsPerLaunch];
};

// Entry: TensorSlot or MuonMatrix.
template <class Entry>
__global__ void grads_kernel(Entry* entries, const GradPointers grads, uint32_t count) {
  const uint32_t i = threadIdx.x;
  if (i >= count) return;
  entries[i].grad = grads.values[i];
  entries[i].is_aligned = is_aligned(entries[i]) ? 1 : 0;
}

template <class Entry>
cudaError_t write_grads(Entry* entries, const void* const* grads, uint32_t count,
                        cudaStream_t stream) {
  for (uint32_t first = 0; first < count; first += kGradsPerLaunch) {
    const uint32_t left = count - first;
    const uint32_t some = left < kGradsPerLaunch ? left : kGradsPerLaunch;
    GradPointers pointers = {};
    for (uint32_t i = 0; i < some; ++i) pointers.values[i] = grads[first + i];
    const cudaError_t error =
        launch({1, kGradsPerLaunch, stream}, grads_kernel<Entry>, entries + first, pointers, some);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t set_rates(GroupSettings* groups, const GroupRates* rates, uint32_t group_count,
                      cudaStream_t stream) {
  for (uint32_t first = 0; first < group_count; first += kRatesPerLaunch) {
    const uint32_t left = group_count - first;
    const uint32_t count = left < kRatesPerLaunch ? left : kRatesPerLaunch;
    Rates some = {};
    for (uint32_t i = 0; i < count; ++i) some.values[i] = rates[first + i];
    const cudaError_t error =
        launch({1, kRatesPerLaunch, stream}, rates_kernel, groups + first, some, count);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t set_control(StepControl* control, const ControlSettings& settings,
                        cudaStream_t stream) {
  return launch({1, 1, stream}, control_kernel, control, settings);
}

cudaError_t read_sources(const SourcesRequest& request, cudaStream_t stream) {
  return launch({1, kControlThreads, stream}, sources_kernel, request);
}

cudaError_t finish_step_control(const StepControlRequest& request, cudaStream_t stream) {
  return launch({1, kControlThreads, stream}, finish_kernel, request);
}

cudaError_t set_grads(TensorSlot* slots, const void* const* grads, uint32_t count,
                      cudaStream_t stream) {
  return write_grads(slots, grads, count, stream);
}

cudaError_t set_grads(MuonMatrix* matrices, const void* const* grads, uint32_t count,
                      cudaStream_t stream) {
  return write_grads(matrices, grads, count, stream);
}

}  // namespace kernels
