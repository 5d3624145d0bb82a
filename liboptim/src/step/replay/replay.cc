#include <optim/megatron_folders.h>
#include <optim/replay.h>

#include <ATen/core/grad_mode.h>

#include <ckpt/error.h>
#include <optional>
#include <utility>

#include "state/remainders.h"
#include "step/loops/single_thread.h"
#include "step/replay/outcome.h"
#include "step/replay/restored_optimizer.h"
#include "step/replay/saved_result.h"

namespace optim {
namespace {

[[noreturn]] void refuse(const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, problem);
}

// Options with all defaults filled in.
ReplayOptions complete(ReplayOptions options, const Gradients& gradients,
                       const TrainingState& view) {
  const int64_t recorded = gradients.step_count();
  if (!options.steps) options.steps = recorded;
  if (*options.steps < 1) refuse("at least one step must be replayed");
  if (*options.steps > recorded) {
    refuse(std::to_string(*options.steps) + " steps were requested, but only " +
           std::to_string(recorded) + " are recorded");
  }
  if (!options.data_parallel) options.data_parallel = view.grid.sizes.data_parallel;
  if (*options.data_parallel < 1) refuse("the data-parallel size must be at least 1");
  const std::filesystem::path& output = options.output;
  if (!options.force && !output.empty() && std::filesystem::exists(output)) {
    throw ckpt::Error(ckpt::ErrorCode::AlreadyExists, {.file = output.string()},
                      "the output exists",  // said before the work, not after
                      "give another name to -o, or replace it with --force");
  }
  return options;
}

void refuse_remainders(const ReplaySource& source) {
  if (!has_remainders(source.view)) return;
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = source.checkpoint.shown_path()},
                    "its masters are stored as 16-bit remainders, from which no step is replayed");
}

// The masters of a `torch` checkpoint have no names of their own: content proves which they are.
std::vector<std::string> prove_names(const ReplaySource& source, const ReplayOptions& options) {
  std::vector<std::string> warnings;
  const bool is_flat = source.view.sharding == OptimizerSharding::DpReshardable ||
                       source.view.sharding == OptimizerSharding::FlatFile;
  const bool is_numbered = is_flat || source.view.format == ckpt::Format::Torch;
  if (options.from_init || !is_numbered) return warnings;
  const std::string naming = is_flat ? "the order of the flat buffers" : "the ping-pong deal";
  for (const AmbiguousParam& param : prove_assignment(source.view, source.checkpoint)) {
    warnings.push_back("the master of '" + ckpt::escaped(param.name) + "' also fits '" +
                       ckpt::escaped(param.also_fits.front()) + "', so only " + naming +
                       " tells them apart");
  }
  return warnings;
}

// What is corrupt in a checkpoint's arguments or groups has the checkpoint's name.
template <class Restore>
auto restored(const ReplayOptions& options, Restore&& restore) {
  try {
    return restore();
  } catch (ckpt::Error& error) {
    if (error.code() == ckpt::ErrorCode::Corrupt) {
      error.within({.file = options.checkpoint.string()});
    }
    throw;
  }
}

class Replay {
 public:
  Replay(const ReplaySource& source, const Gradients& gradients, const ReplayOptions& options)
      : source_(source),
        gradients_(gradients),
        options_(options),
        groups_(join_data_parallel(options.processes)),
        optimizer_(restored(options,
                            [&] {
                              return restore_optimizer(source,
                                                       options.from_init ? &gradients : nullptr,
                                                       options, groups_);
                            })),
        schedule_(restored(options, [&] { return restore_schedule(source, options.from_init); })),
        scheduler_(*optimizer_, schedule_.settings),
        collectives_(groups_.dp_cp) {
    scheduler_.step(schedule_.num_steps);
    if (options.recorded_grad_norm) norms_ = gradients.recorded_norms(*options.steps);
    report_.data_parallel = *options.data_parallel;
    report_.processes = collectives_.size();
    report_.first_iteration = options.from_init ? 0 : saved_iteration(source);
  }

  ReplayReport run() {
    std::optional<Expectation> expectation;
    std::map<uint32_t, at::Tensor> start;
    if (!options_.expect.empty()) {
      expectation.emplace(options_.expect, options_.limits);
      start = copy_matrix_masters(*optimizer_);
    }
    for (int64_t step = 0; step < *options_.steps; ++step) report_.steps.push_back(advance(step));
    if (expectation) {
      report_.compared =
          compare_state(*optimizer_, {*expectation, options_, std::move(start)}, collectives_);
      for (const ComparedKind& kind : report_.compared) report_.passed &= kind.passed;
    }
    if (!options_.output.empty()) save();
    return std::move(report_);
  }

 private:
  // On a GPU the whole step is one call, which clips by its own norm.
  ReplayedStep advance_on_device(int64_t step, const at::Device& device) {
    ReplayedStep done;
    done.lr = optimizer_->param_groups().front()->lr;
    optimizer_->bind_grads(
        [&](const ParamInfo& info) { return gradients_.grad(step, info).to(device); });
    const StepResult result = optimizer_->step();
    done.grad_norm = done.grad_norm_used = result.grad_norm->get();
    done.num_zeros = result.num_zeros_in_grad->get();
    scheduler_.step(schedule_.increment);
    return done;
  }

  ReplayedStep advance(int64_t step) {
    if (options_.execute.stop.stop_requested()) {
      throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "cancelled");
    }
    const at::Device device = optimizer_->all_params().front().param.device();
    if (!device.is_cpu()) return advance_on_device(step, device);
    ReplayedStep done;
    done.lr = optimizer_->param_groups().front()->lr;
    optimizer_->bind_grads([&](const ParamInfo& info) { return gradients_.grad(step, info); });
    optimizer_->prepare_grads();
    done.grad_norm = optimizer_->get_grad_norm();
    done.grad_norm_used = norms_.empty() ? done.grad_norm : norms_[static_cast<size_t>(step)];
    const double max_norm = optimizer_->config().clip_grad;
    if (max_norm > 0) optimizer_->clip_grad_by_total_norm(max_norm, done.grad_norm_used);
    done.num_zeros = optimizer_->count_zeros();
    optimizer_->step_with_ready_grads();
    optimizer_->allgather_params();
    optimizer_->zero_grad();
    scheduler_.step(schedule_.increment);
    return done;
  }

  void save() {
    const int64_t iteration = report_.first_iteration + *options_.steps;
    for (const ckpt::NotCarried& lost :
         save_result(source_, {*optimizer_, scheduler_, iteration}, options_, collectives_)) {
      report_.not_carried.push_back(lost.what + ": " + lost.reason);
    }
  }

  const ReplaySource& source_;
  const Gradients& gradients_;
  const ReplayOptions& options_;
  ProcessGroupCollection groups_;
  std::unique_ptr<LayerWiseDistributedOptimizer> optimizer_;
  RestoredSchedule schedule_;
  OptimizerParamScheduler scheduler_;
  Collectives collectives_;
  std::vector<double> norms_;
  ReplayReport report_;
};

}  // namespace

ReplayReport replay(const ReplayOptions& given) {
  const SingleThread single_thread;
  const at::NoGradGuard no_grad;
  const ckpt::Checkpoint checkpoint =
      open_checkpoint(given.checkpoint, {given.iteration, given.limits});
  const TrainingState view = restored(given, [&] { return name_layer_wise(checkpoint); });
  const ReplaySource source{checkpoint, view};
  refuse_remainders(source);
  const Gradients gradients(given.gradients, given.first);
  const ReplayOptions options = complete(given, gradients, view);
  gradients.check(view.params, *options.steps, options.from_init);
  std::vector<std::string> warnings = prove_names(source, options);
  ReplayReport report = Replay(source, gradients, options).run();
  report.warnings = std::move(warnings);
  return report;
}

}  // namespace optim
