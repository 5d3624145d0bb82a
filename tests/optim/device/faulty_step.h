#pragma once

#include <cstdint>
#include <memory>

#include "host_step.h"

namespace optim {

// Which call of a device fails, as that of a GPU would.
enum class Fault {
  None,
  Make,
  Memory,
  Bind,
  Capture,
  Rates,
  Control,
  Grads,
  Stats,
  Update,
  LateUpdate
};

// A HostStep of which one call says no: before it has done anything, or, LateUpdate, when the
// device has counted the step.
class FaultyStep : public HostStep {
 public:
  static inline thread_local Fault fault = Fault::None;  // of the calling rank
  static constexpr kernels::DeviceStatus kRefused = 2;   // cudaErrorMemoryAllocation
  using Stream = kernels::DeviceStream;

  using HostStep::HostStep;
  uint64_t device_bytes() const override {
    return fault == Fault::Memory ? uint64_t{1} << 60 : HostStep::device_bytes();
  }
  kernels::DeviceStatus bind(void* memory, Stream stream) override {
    return fault == Fault::Bind ? kRefused : HostStep::bind(memory, stream);
  }
  kernels::DeviceStatus capture() override {
    return fault == Fault::Capture ? kRefused : HostStep::capture();
  }
  kernels::DeviceStatus set_rates(const std::vector<kernels::GroupRates>& rates,
                                  Stream stream) override {
    return fault == Fault::Rates ? kRefused : HostStep::set_rates(rates, stream);
  }
  kernels::DeviceStatus set_control(const kernels::ControlSettings& settings,
                                    Stream stream) override {
    return fault == Fault::Control ? kRefused : HostStep::set_control(settings, stream);
  }
  kernels::DeviceStatus queue_stats(Stream stream) override {
    return fault == Fault::Stats ? kRefused : HostStep::queue_stats(stream);
  }
  kernels::DeviceStatus set_grads(const std::vector<const void*>& grads, Stream stream) override {
    return fault == Fault::Grads ? kRefused : HostStep::set_grads(grads, stream);
  }
  kernels::DeviceStatus queue_update(uint32_t part, Stream stream) override {
    if (fault == Fault::LateUpdate) count_step();
    return fault == Fault::Update || fault == Fault::LateUpdate
               ? kRefused
               : HostStep::queue_update(part, stream);
  }
};

inline std::unique_ptr<kernels::DeviceStep> make_faulty_step(kernels::StepPlan plan,
                                                             kernels::DeviceStatus& status) {
  status = FaultyStep::fault == Fault::Make ? FaultyStep::kRefused : 0;
  if (status != 0) return nullptr;
  return std::make_unique<FaultyStep>(std::move(plan));
}

inline const kernels::DeviceApi& faulty_api() {
  static const kernels::DeviceApi api = {[]() -> const char* { return nullptr; },
                                         [](kernels::DeviceStatus) { return "out of memory"; },
                                         make_faulty_step,
                                         make_copies_twin,
                                         pin_twin,
                                         unpin_twin};
  return api;
}

}  // namespace optim
