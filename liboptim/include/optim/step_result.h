#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace optim {

// A result that a device may still be computing; get() waits for it.
template <class T>
class Deferred {
 public:
  explicit Deferred(T value) : read_([value] { return value; }) {}
  explicit Deferred(std::function<T()> read) : read_(std::move(read)) {}
  T get() const { return read_(); }

 private:
  std::function<T()> read_;
};

struct StepResult {
  bool update_successful = false;  // false: an overflow; nothing moved, no step was counted
  std::optional<Deferred<double>> grad_norm = {};           // before clipping
  std::optional<Deferred<int64_t>> num_zeros_in_grad = {};  // after clipping; if the config asks
};

// Steps that are work for a GPU alone, so that a trainer can record a whole iteration (gradients,
// step, what else it does) as one CUDA graph and replay it: nothing of the host's is frozen in it.
// Ours; the reference has no such thing.
//
//   optimizer.prepare_queued_steps({rates, scale})  once
//   begin capture; forward, backward; optimizer.queue_step(); end capture
//   OptimizerParamScheduler writes the groups       on the host, as ever
//   rates.copy_(optimizer.group_rates())            before each replay, behind the last one
//   replay
//   optimizer.end_queued_steps()                    before the graph is thrown away
//
// prepare_queued_steps() makes and loads all that a step needs, and waits; nothing moves. From then
// on gradients stay where main_grad says that they are. Until end_queued_steps() step() and loading
// a state are refused; state_dict() takes the counts of steps from the device, waiting for the
// current stream, which should be behind all replays. Called again it prepares anew, and graphs
// recorded before must not be replayed. Before anything moved it throws Error(Unsupported) for what
// the device cannot do alone: parameters on the CPU (key `device`), `optimizer_cuda_graph`,
// `optimizer_cpu_offload` where parameters are offloaded, timers with `barrier_with_L1_time`,
// process groups without a backend for the device (`dp_cp`); Error(InvalidArgument) for sources
// that do not fit (`rates`, `loss_scale`), a dynamic loss scale that is not on the device
// (`loss_scale`) and, with several processes, without adopt_param_buffers() (its name); and what
// step() throws. Where one process cannot, all throw.
//
// queue_step() is step() on the current stream, which may be capturing. Rates and scale are read
// when the work runs; whether the step is skipped (an overflow under loss scaling) is decided on
// the device, and clipping is by the configuration's clip_grad, which does not change. Nothing
// waits, nothing is allocated on the device, nothing that the host may change is read. Counts of
// steps stay on the device, the loss scale is not moved, timers are not called for it. Parameters
// are everywhere behind it. Throws Error(InvalidArgument), with the parameter's name where it is
// one's, where a tensor or gradient is another than was prepared; Error(IoFailure) where the device
// said no, after which it is prepared again. Where it throws on one of several processes, a step of
// the others that has run changed nothing, and a graph of theirs must not be replayed.
//
// end_queued_steps() waits as state_dict() does, and step() works again. Not thread-safe.
// What a queued step reads from device memory whenever it runs: tensors of the caller's, on the
// device of the parameters, contiguous. The optimizer keeps handles of them.
struct QueuedStepSources {
  // float64, {number of param_groups(), 2}: lr and weight_decay of each group, as OptimizerGroup
  // has them (weight_decay times wd_mult).
  at::Tensor rates;
  // float32, one element, positive: the loss scale that gradients are divided by. For
  // configurations that scale (fp16 or loss_scale). Undefined: the static loss_scale of the
  // configuration, or no scaling.
  at::Tensor loss_scale = {};
};

// What a queued step says of itself, in device memory of the optimizer's: of the step that ran
// last, replays included. Views of one element each, valid until end_queued_steps(); reading them
// on the host waits. Work on the same stream, in the same graph too, may read them.
struct QueuedStep {
  at::Tensor skipped;            // int32: 1 where nothing was changed and no step counted
  at::Tensor failed;             // int32: 1 where another process could not queue its step
  at::Tensor grad_norm;          // float64, of unscaled gradients before clipping
  at::Tensor num_zeros_in_grad;  // int64, before clipping
};

}  // namespace optim
