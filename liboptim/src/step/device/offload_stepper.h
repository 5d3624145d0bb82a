#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <kernels/device_step.h>
#include <optim/optimizer.h>

namespace optim {

// Memory of the host in whole pages, page-locked where that is asked for.
class HostBlock {
 public:
  HostBlock() = default;
  // Throws Error(IoFailure) where the device cannot page-lock it.
  HostBlock(uint64_t bytes, const kernels::DeviceApi* pins_with);
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&& other) noexcept;
  ~HostBlock();

  uint64_t bytes() const { return bytes_; }
  std::byte* at(uint64_t offset) const { return begin_ + offset; }

 private:
  at::Tensor memory_;
  std::byte* begin_ = nullptr;
  uint64_t bytes_ = 0;
  const kernels::DeviceApi* pinned_by_ = nullptr;
};

// The part of a step on a device that the CPU does: parameters that are offloaded. Their gradients
// are copied to the host (fp32 parameters, too, so that the model's tensor stays the only one), the
// CPU updates masters and states there, and the parameters are copied back. What the step's control
// says, of all gradients as one, counts here, too. With overlap_cpu_optimizer_d2h_h2d each
// parameter is updated as soon as its gradient is there, while later gradients and earlier
// parameters travel; else all of them at once.
class OffloadStepper {
 public:
  // The configuration and the api stay the caller's.
  OffloadStepper(const OptimizerConfig& config, const at::Device& device,
                 const kernels::DeviceApi& api);

  // What is to be done in this step; nothing is queued. Makes states that are absent and memory on
  // the host. Throws Error(InvalidArgument), with the parameter's name, for tensors that do not fit
  // each other.
  void prepare(const std::vector<OptimizerGroup*>& groups);
  bool has_work() const { return !items_.empty(); }

  // Copies to the host, behind what the caller's stream was given so far: `control`, of this step
  // and already decided, and the gradients.
  void queue_copies(const kernels::StepControl* control);
  // Updates those of these ids that are left, of null all that are left, waiting for their
  // gradients, and queues the copies to the device, which the caller's stream will wait for. Where
  // the control says that nothing may change, it does nothing.
  void update(const std::vector<uint32_t>* ids);
  void abandon();  // ends what is on its way, after a failure
  // Steps since the last call that another process kept this one from making, though they seemed to
  // be made: those without loss scaling.
  int64_t take_lost_steps() { return std::exchange(lost_steps_, 0); }

 private:
  struct Item {
    OptimizerGroup* group;
    OptimizedParam* param;
    uint64_t grad_offset, param_offset;  // in the blocks of the host
    uint32_t mark = 0;
    bool is_done = false;
  };

  void place();
  const kernels::StepControl& control();
  void update_together(std::span<Item* const> items);
  void send(Item& item);

  const OptimizerConfig& config_;
  at::Device device_;
  const kernels::DeviceApi& api_;
  HostBlock grads_, params_;  // destroyed behind the copies, which end first
  std::unique_ptr<kernels::HostCopies> copies_;
  std::vector<Item> items_;  // in the order of groups
  bool has_control_ = false;
  int64_t lost_steps_ = 0;
};

}  // namespace optim
