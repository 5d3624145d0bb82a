#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "gpu_check/report.h"
#include "kernels/random_slot.h"

namespace gpu_check {

struct DeviceFree {
  void operator()(void* pointer) const { cudaFree(pointer); }
};
using DevicePointer = std::unique_ptr<void, DeviceFree>;

inline DevicePointer allocate(size_t bytes) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, bytes + 256), "cudaMalloc");
  return DevicePointer(memory);
}

template <class T>
std::vector<T> download(const void* from, size_t count) {
  std::vector<T> values(count);
  require(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return values;
}

// A parameter's tensors on the device. `skew_bytes` behind 256-byte boundaries.
class DeviceSlot {
 public:
  DeviceSlot(const kernels::SlotMemory& host, const kernels::TensorTypes& types,
             size_t skew_bytes = 0)
      : host_(host), types_(types), scales_(allocate(sizeof host.scales)) {
    for (const auto& tensor : host.tensors) {
      memory_.push_back(allocate(tensor.size() + skew_bytes));
      places_.push_back(static_cast<char*>(memory_.back().get()) + skew_bytes);
      require(cudaMemcpy(places_.back(), tensor.data(), tensor.size(), cudaMemcpyHostToDevice),
              "upload");
    }
    require(
        cudaMemcpy(scales_.get(), host.scales.data(), sizeof host.scales, cudaMemcpyHostToDevice),
        "upload of scales");
  }

  kernels::TensorSlot slot() {
    using kernels::SlotMemory;
    kernels::TensorSlot slot = host_.slot(types_);
    slot.grad = places_[SlotMemory::Grad];
    slot.main = places_[SlotMemory::Main];
    slot.remainder = places_[SlotMemory::Remainder];
    slot.state[0] = places_[SlotMemory::State0];
    slot.state[1] = places_[SlotMemory::State1];
    if (slot.model != nullptr) slot.model = places_[SlotMemory::Model];
    for (int i = 0; i < 3; ++i) {
      if (slot.scale[i] == nullptr) continue;
      slot.scale[i] = static_cast<kernels::StateScale*>(scales_.get()) + i;
    }
    slot.is_aligned = kernels::is_aligned(slot) ? 1 : 0;
    return slot;
  }

  // What the device holds now.
  kernels::SlotMemory read() const {
    kernels::SlotMemory now = host_;
    for (size_t i = 0; i < now.tensors.size(); ++i) {
      now.tensors[i] = download<unsigned char>(places_[i], now.tensors[i].size());
    }
    const auto scales = download<kernels::StateScale>(scales_.get(), 3);
    std::copy(scales.begin(), scales.end(), now.scales.begin());
    return now;
  }

 private:
  kernels::SlotMemory host_;
  kernels::TensorTypes types_;
  std::vector<DevicePointer> memory_;
  std::vector<char*> places_;
  DevicePointer scales_;
};

// Whether two are equal bit for bit, and where not.
inline std::string difference(const kernels::SlotMemory& found,
                              const kernels::SlotMemory& expected) {
  static const char* const kNames[] = {"grad", "main", "remainder", "state 0", "state 1", "model"};
  for (size_t t = 0; t < expected.tensors.size(); ++t) {
    if (found.tensors[t] == expected.tensors[t]) continue;
    size_t at = 0;
    while (found.tensors[t][at] == expected.tensors[t][at]) ++at;
    return std::string(kNames[t]) + " differs at byte " + std::to_string(at) + " of " +
           std::to_string(expected.tensors[t].size());
  }
  for (size_t i = 0; i < expected.scales.size(); ++i) {
    if (found.scales[i].scale != expected.scales[i].scale) {
      return "scale " + std::to_string(i) + " differs";
    }
  }
  return "";
}

// A step over some parameters, in device memory of its own, all of which is NaN at first: what is
// read before it was written shows in the results.
class BoundStep {
 public:
  explicit BoundStep(kernels::StepPlan plan) {
    kernels::DeviceStatus status = 0;
    step_ = kernels::device_api().make_step(std::move(plan), status);
    require(status, "make_step");
    memory_ = allocate(step_->device_bytes());
    require(cudaMemset(memory_.get(), 0xFF, step_->device_bytes()), "NaN in the step's memory");
    require(step_->bind(memory_.get(), nullptr), "bind");
  }
  kernels::DeviceStep* operator->() const { return step_.get(); }

  void run() const {
    require(step_->queue_stats(nullptr), "queue_stats");
    require(step_->queue_update(0, nullptr), "queue_update");
    require(cudaDeviceSynchronize(), "the step");
  }
  kernels::StepControl control() const {
    return download<kernels::StepControl>(step_->control(), 1)[0];
  }

 private:
  std::unique_ptr<kernels::DeviceStep> step_;
  DevicePointer memory_;
};

inline kernels::GroupSettings settings_of(kernels::RuleKind rule, kernels::Decay decay) {
  kernels::GroupSettings settings = {};
  settings.lr = 1e-2;
  settings.weight_decay = 0.1;
  settings.beta1 = 0.9;
  settings.beta2 = 0.95;
  settings.eps = 1e-8;
  settings.step = 2;
  settings.rule = rule;
  settings.decay = decay;
  settings.bias_correction = true;
  return settings;
}

inline kernels::StepPlan plan_of(const kernels::GroupSettings& settings) {
  kernels::StepPlan plan;
  plan.groups.push_back({.settings = settings, .muon = {}});
  return plan;
}

}  // namespace gpu_check
