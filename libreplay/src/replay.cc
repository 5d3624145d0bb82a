#include <optim/grad_stats.h>
#include <replay/replay.h>
#include <training/opened_training.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <ckpt/error.h>
#include <optim/checkpoint_args.h>
#include <training/prove_assignment.h>
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "explain.h"
#include "group_settings.h"
#include "outcome.h"
#include "restored_optimizer.h"
#include "rules/refuse_key.h"
#include "state/remainders.h"
#include "step/loops/grad_stats_kernels.h"
#include "step/loops/single_thread.h"

namespace optim {
namespace {

// Options with all defaults filled in.
ReplayOptions complete(ReplayOptions options, const Gradients& gradients, const FiledState& state) {
  const int64_t recorded = gradients.step_count();
  if (!options.steps) options.steps = recorded;
  if (*options.steps < 1) refuse_key({}, "at least one step must be replayed");
  if (*options.steps > recorded) {
    refuse_key({}, std::to_string(*options.steps) + " steps were requested, but only " +
                       std::to_string(recorded) + " are recorded");
  }
  if (!options.data_parallel) options.data_parallel = state.grid.sizes.data_parallel;
  if (*options.data_parallel < 1) refuse_key({}, "the data-parallel size must be at least 1");
  const std::filesystem::path& output = options.output;
  if (!options.force && !output.empty() && std::filesystem::exists(output)) {
    throw ckpt::Error(ckpt::ErrorCode::AlreadyExists, {.file = output.string()},
                      "the output exists",  // said before the work, not after
                      "give another name to -o, or replace it with --force");
  }
  return options;
}

void refuse_remainders(const ReplaySource& source) {
  if (!has_remainders(source.state)) return;
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = source.checkpoint.shown_path()},
                    "its masters are stored as 16-bit remainders, from which no step is replayed");
}

void refuse_unreplayed_gradients(const Gradients& gradients, const ReplayOptions& options) {
  if (!gradients.are_dumped()) return;
  if (options.from_init) refuse_key({}, "a dump of Megatron's holds no init.NAME to start from");
  if (options.device == "cpu") return;
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = options.gradients.string()},
                    "a dump of Megatron's is replayed on the CPU", "leave --device out");
}

// The masters of a `torch` checkpoint have no names of their own: content proves which they are.
std::vector<std::string> prove_names(const ReplaySource& source, const ReplayOptions& options) {
  std::vector<std::string> warnings;
  const Filing* const filing = source.state.filed.only();
  const bool is_flat = filing != nullptr && filing->in_order;
  const bool is_numbered = is_flat || source.state.filed.container == ckpt::Format::Torch;
  if (options.from_init || !is_numbered) return warnings;
  const std::string naming = is_flat ? "the order of the flat buffers" : "the ping-pong deal";
  for (const AmbiguousParam& param : prove_assignment(source.state, source.checkpoint)) {
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
  Replay(const ReplaySource& source, const Gradients& gradients, const ReplayOptions& options,
         ReplayObserver* observer)
      : observer_(observer),
        source_(source),
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
        collectives_(groups_.dp_cp),
        scaler_(gradients.are_dumped() ? restore_grad_scaler(source) : nullptr) {
    scheduler_.step(schedule_.num_steps);
    if (options.recorded_grad_norm) norms_ = gradients.recorded_norms(*options.steps);
    report_.has_unused_norms = !options.recorded_grad_norm && gradients.has_run_record();
    report_.data_parallel = *options.data_parallel;
    report_.processes = collectives_.size();
    report_.first_iteration = options.from_init ? 0 : saved_iteration(source);
  }

  ReplayReport run() {
    std::optional<Expectation> expectation;
    std::map<uint32_t, at::Tensor> start;
    if (!options_.expect.empty()) {
      expectation.emplace(options_.expect, options_.limits, source_.cuts);
      start = copy_matrix_masters(*optimizer_);
    }
    if (observer_ != nullptr) observer_->begin(*optimizer_, *options_.steps);
    for (int64_t step = 0; step < *options_.steps; ++step) {
      last_rates_.clear();
      for (const OptimizerGroup* const group : optimizer_->param_groups()) {
        last_rates_.push_back({group->lr, group->weight_decay});
      }
      report_.steps.push_back(advance(step));
    }
    if (observer_ != nullptr) observer_->end();
    if (expectation) compare({*expectation, options_, std::move(start)});
    if (!options_.output.empty()) save();
    return std::move(report_);
  }

 private:
  void compare(const Expected& expected) {
    Comparison comparison = compare_state(*optimizer_, expected, collectives_);
    report_.compared = std::move(comparison.kinds);
    for (const ComparedKind& kind : report_.compared) report_.passed &= kind.passed;
    if (!comparison.first) return;
    const ReplayedStep& step = report_.steps.back();
    const double max_norm = optimizer_->config().clip_grad;
    const double factor =
        max_norm > 0 ? std::min(1.0, clip_coefficient(max_norm, step.grad_norm_used)) : 1.0;
    const LastStep last{.optimizer = *optimizer_,
                        .source = source_,
                        .gradients = gradients_,
                        .rates = last_rates_,
                        .norm = step.grad_norm,
                        .factor = factor,
                        .inverse_scale = static_cast<float>(1 / step.loss_scale),
                        .was_skipped = step.was_skipped};
    report_.divergence = explain(comparison, expected, last, collectives_);
    report_.divergence->iteration = report_.first_iteration + *options_.steps;
  }

  // On a GPU the whole step is one call, which clips by its own norm.
  ReplayedStep advance_on_device(int64_t step, const at::Device& device) {
    ReplayedStep done;
    done.lr = optimizer_->param_groups().front()->lr;
    optimizer_->bind_grads(
        [&](const ParamInfo& info) { return finite_grad(step, info).to(device); });
    const StepResult result = optimizer_->step();
    done.grad_norm = done.grad_norm_used = result.grad_norm->get();
    done.num_zeros = result.num_zeros_in_grad->get();
    scheduler_.step(schedule_.increment);
    return done;
  }

  at::Tensor finite_grad(int64_t step, const ParamInfo& info) const {
    const Cuts& cuts = source_.cuts;
    return cuts.piece(gradients_.finite_grad(step, cuts.whole_of(info)), info.name);
  }

  // True, on all processes, where a gradient overflowed under a loss scale.
  bool bind_overflows(int64_t step) {
    if (scaler_ == nullptr) {
      optimizer_->bind_grads([&](const ParamInfo& info) { return finite_grad(step, info); });
      return false;
    }
    at::Tensor overflows = at::zeros({1}, at::kDouble);
    optimizer_->bind_grads([&](const ParamInfo& info) {
      const at::Tensor grad =
          unscaled(grad_of(source_, gradients_, step, info), scaler_->inverse_scale());
      if (!std::isfinite(sum_of_squares(grad))) overflows.fill_(1);
      return grad;
    });
    collectives_.all_reduce_max(overflows);
    return overflows.item<double>() > 0;
  }

  ReplayedStep advance(int64_t step) {
    if (options_.execute.stop.stop_requested()) {
      throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "cancelled");
    }
    const at::Device device = optimizer_->all_params().front().param.device();
    if (!device.is_cpu()) return advance_on_device(step, device);
    ReplayedStep done;
    done.lr = optimizer_->param_groups().front()->lr;
    if (scaler_ != nullptr) done.loss_scale = scaler_->scale();
    done.was_skipped = bind_overflows(step);
    if (scaler_ != nullptr) scaler_->update(done.was_skipped);
    if (done.was_skipped) return done;
    optimizer_->prepare_grads();
    done.grad_norm = optimizer_->get_grad_norm();
    done.grad_norm_used = norms_.empty() ? done.grad_norm : norms_[static_cast<size_t>(step)];
    const double max_norm = optimizer_->config().clip_grad;
    if (max_norm > 0) optimizer_->clip_grad_by_total_norm(max_norm, done.grad_norm_used);
    done.num_zeros = optimizer_->count_zeros();
    if (observer_ != nullptr) observer_->before_update(*optimizer_, step);
    optimizer_->step_with_ready_grads();
    optimizer_->allgather_params();
    if (observer_ != nullptr) observer_->after_update(*optimizer_, step);
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

  ReplayObserver* observer_;  // null: nobody looks on
  const ReplaySource& source_;
  const Gradients& gradients_;
  const ReplayOptions& options_;
  ProcessGroupCollection groups_;
  std::unique_ptr<LayerWiseDistributedOptimizer> optimizer_;
  RestoredSchedule schedule_;
  OptimizerParamScheduler scheduler_;
  Collectives collectives_;
  std::unique_ptr<GradScaler> scaler_;  // of gradients that are not divided by it; else null
  std::vector<double> norms_;
  std::vector<LastStep::Rates> last_rates_;  // of the groups, in the last step
  ReplayReport report_;
};

// Settings and groups of a step are those of the optimizer, with --from-init, too.
void refuse_model_alone(const FiledState& state, const OpenedTraining& checkpoint) {
  if (!state.chain.empty()) return;
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = checkpoint.shown_path(), .key = {}},
                    "holds a model without its optimizer; expected parameter groups and optimizer "
                    "state",
                    kWorksOnUnreplayed);
}

}  // namespace

ReplayReport replay_observed(const ReplayOptions& given, ReplayObserver* observer) {
  const SingleThread single_thread;
  const at::NoGradGuard no_grad;
  const OpenedTraining checkpoint =
      open_checkpoint(given.checkpoint, {given.iteration, given.limits});
  const Overrides overrides(given.overrides);
  FiledState state = restored(given, [&] { return read_training_state(checkpoint); });
  refuse_model_alone(state, checkpoint);
  overrides.apply_to_args(state);
  const ReplaySource source{checkpoint, state, overrides, restored(given, [&] {
                              return Cuts(state, config_from_args(state.args()));
                            })};
  refuse_remainders(source);
  const int64_t iteration =
      given.from_init ? 0 : restored(given, [&] { return saved_iteration(source); });
  const Gradients gradients(given.gradients, {state, iteration}, given.first);
  refuse_unreplayed_gradients(gradients, given);
  const ReplayOptions options = complete(given, gradients, state);
  gradients.check(state.params, *options.steps, options.from_init);
  std::vector<std::string> warnings = prove_names(source, options);
  ReplayReport report = Replay(source, gradients, options, observer).run();
  report.warnings = std::move(warnings);
  return report;
}

ReplayReport replay(const ReplayOptions& options) { return replay_observed(options, nullptr); }

}  // namespace optim
