#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <kernels/device_step.h>
#include <optim/optimizer.h>
#include <cstdint>
#include <vector>

namespace optim {

// A step's parameters as the kernels see them, with the memory that they point into.
struct DevicePlan {
  kernels::StepPlan plan;
  std::vector<const OptimizerGroup*> groups;  // whose rates each group of `plan` takes
  std::vector<OptimizedParam*> params;        // those with gradients, in the order of `plan`
  std::vector<MuonScaleMode> scale_modes;     // of each group of `plan`
  // Of all but gradients: kept alive, so that no address is given twice.
  std::vector<c10::Storage> storages;

  // Whether the same memory would be stepped again in the same way: rates, scales and where the
  // gradients lie aside, nothing has changed. A tensor is known by its memory, which may be
  // exchanged under the same handle.
  bool is_equal(const DevicePlan& other) const;
  std::vector<const void*> grads() const;  // in the order of `params`
  // The first parameter whose gradient lies elsewhere in a plan that is_equal(); null: none.
  const OptimizedParam* moved_grad(const DevicePlan& other) const;
};

using UpdateParts = std::vector<std::vector<uint32_t>>;

struct PlanOptions {
  at::Device device;         // that all tensors lie on
  uint32_t stats_count = 0;  // parameters of all ranks, by id
  // Ids that each part of the update updates; the last part all others, too.
  const UpdateParts& parts;
};

// Creates absent states, in the precision asked for; of parameters that are offloaded only the
// gradient takes part. Parameters whose updates are counted
// differently become groups of their own. Throws Error(Unsupported), with the parameter's name, for
// what the kernels cannot do, Error(InvalidArgument) for tensors that do not fit each other.
DevicePlan make_device_plan(const std::vector<OptimizerGroup*>& groups,
                            const StatePrecision& precision, const PlanOptions& options);

// None for a tensor that is not there. Throws Error(Unsupported), with the parameter's name, for
// types that the kernels do not know.
kernels::ElementType device_type(const OptimizedParam& param, const at::Tensor& tensor);

// A group's rule as the kernels take it. Rates and counts are filled in.
kernels::StepGroup device_group(const OptimizerGroup& group, int64_t updates_done);

}  // namespace optim
