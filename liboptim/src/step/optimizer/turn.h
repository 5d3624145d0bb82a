#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "step/device/device_stepper.h"
#include "step/optimizer/peers_and_device.h"

namespace optim {

// The device that a step's work is for is the current one, and nothing is recorded for gradients.
class OnDevice {
 public:
  explicit OnDevice(const at::Device& device)
      : guard_(device.is_cpu() ? std::nullopt : std::optional(device)) {}

 private:
  at::NoGradGuard no_grad_;
  c10::OptionalDeviceGuard guard_;
};

// How a step scales: by the host's loss scale of now.
DeviceStepper::Scaling scaling_of(Optimizer& optimizer);

// What this process could not do while others count on it: they get their answers first.
class TurnFailure {
 public:
  explicit TurnFailure(bool has_peers) : has_peers_(has_peers) {}

  template <class Body>
  void guard(Body&& body) {
    if (error_) return;
    try {
      body();
    } catch (...) {
      if (!has_peers_) throw;
      error_ = std::current_exception();
    }
  }
  bool is_there() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool has_peers_;
  std::exception_ptr error_;
};

// One step on a device. Whatever fails on this process, its peers find it in every collective
// operation that they enter.
class StepInside::Turn {
 public:
  Turn(Optimizer& optimizer, Peers& peers, DeviceStepper& stepper);

  StepResult take();
  // Of steps that are prepared: nothing waits.
  QueuedStep queue();
  // All collective operations of a step once, with nothing to add and nothing moved.
  void rehearse();

 private:
  // `stats`: queues this process's statistics.
  void queue_all(const std::function<void()>& stats);
  void sum_stats();
  bool peers_gather(const StepResult& result) const;
  StepResult outcome();

  Optimizer& optimizer_;
  Peers& peers_;
  DeviceStepper& stepper_;
  TurnFailure failure_;
  std::vector<std::vector<uint32_t>> parts_;
  at::Tensor stats_;
  const bool scales_;
  bool took_part_ = false;  // in the sum of statistics, with statistics
};

}  // namespace optim
