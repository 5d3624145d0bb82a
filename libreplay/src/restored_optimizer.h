#pragma once

#include <cstdint>
#include <memory>

#include <optim/layer_wise_optimizer.h>
#include <optim/optimizer_param_scheduler.h>
#include <replay/replay.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
#include <training/prove_assignment.h>

#include "gradients.h"
#include "matrix_cuts.h"
#include "overrides.h"

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

}  // namespace optim
