#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include <optim/grad_scaler.h>
#include <optim/layer_wise_optimizer.h>
#include <optim/optimizer_param_scheduler.h>
#include <replay/replay.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
#include <training/prove_assignment.h>

#include "group_settings.h"
#include "matrix_cuts.h"
#include "recording.h"

namespace optim {

// A LayerWise checkpoint, opened and understood.
struct ReplaySource {
  const OpenedTraining& checkpoint;
  const FiledState& state;  // overrides are in its args
  Overrides overrides = {};
  Cuts cuts = {};  // names of the optimizer are those of its pieces
};
// Of a parameter of the optimizer's.
at::Tensor grad_of(const ReplaySource& source, const Gradients& gradients, int64_t step,
                   const ParamInfo& info);

// Where the replay's tensors lie. Throws Error(Unsupported) where that cannot be used.
at::Device replay_device(const ReplayOptions& options);

// The optimizer that the checkpoint is of: parameters of all, state of the owned, from the
// checkpoint or, with `init`, from init.*. Groups keep their saved rates until the scheduler's
// turn. Throws Unsupported, by name, for settings that cannot be replayed.
std::unique_ptr<LayerWiseDistributedOptimizer> restore_optimizer(
    const ReplaySource& source, const Gradients* init, const ReplayOptions& options,
    const ProcessGroupCollection& groups);

// What a step of a parameter starts from.
struct SavedParam {
  at::Tensor master;  // fp32, of its own
  ParamState state;   // those that the checkpoint has
  int64_t step = 0;   // updates before
};
// From the checkpoint or, with `init`, from init.*. `info`: of a parameter that has a gradient.
SavedParam load_saved(const ReplaySource& source, const Gradients* init, const ParamInfo& info);

// The schedule of the checkpoint, where it stands, or at 0.
struct RestoredSchedule {
  SchedulerSettings settings;
  int64_t num_steps = 0;
  int64_t increment = 1;  // num_steps per iteration: the global batch size
};
RestoredSchedule restore_schedule(const ReplaySource& source, bool from_init);

int64_t saved_iteration(const ReplaySource& source);

// How often the parameter was updated; 0 where its optimizer keeps no count (Muon).
int64_t saved_step(const FiledState& state, const TrainedParam& param);

// "optimizer.state.KIND.NAME"; the model's own tensor for "model".
std::string canonical_key(const std::string& kind, const std::string& name);

// Who looks on while steps are replayed, on the CPU. The optimizer's state is that of the moment.
class ReplayObserver {
 public:
  virtual ~ReplayObserver() = default;
  virtual void begin(LayerWiseDistributedOptimizer& optimizer, int64_t steps) = 0;
  // Gradients are clipped, groups have the rates of the step, nothing has moved.
  virtual void before_update(LayerWiseDistributedOptimizer& optimizer, int64_t step) = 0;
  virtual void after_update(LayerWiseDistributedOptimizer& optimizer, int64_t step) = 0;
  virtual void end() = 0;  // the last call; the optimizer is still there
};

// replay() with an observer.
ReplayReport replay_observed(const ReplayOptions& options, ReplayObserver* observer);

// The loss scale of a run whose gradients were dumped before they were divided by it, as args and
// the checkpoint's grad_scaler say: it goes on from where the checkpoint has it. Null where these
// name none. Throws Corrupt where a dynamic scale's state is not in the checkpoint, or makes no
// sense.
std::unique_ptr<GradScaler> restore_grad_scaler(const ReplaySource& source);

// fp32(grad * inverse_scale), as an optimizer divides by its scale; the gradient itself for 1.
at::Tensor unscaled(const at::Tensor& grad, float inverse_scale);

}  // namespace optim
