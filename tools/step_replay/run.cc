#include <iostream>
#include <memory>
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/text.h>
#include <common/whole_file.h>
#include <replay/bisect.h>
#include <replay/replay.h>
#include <step_replay/commands.h>
#include <step_replay/processes.h>
#include <step_replay/run_report.h>

namespace tools::step_replay {
namespace {

struct RunOptions {
  optim::ReplayOptions replay;
  ToleranceOptions tolerance;
  int spawn = 1;
  std::string grad_norm;
  std::string junit, config, other_config, tp_mode;
  std::vector<std::string> arguments;  // the whole command line

  void declare(CLI::App& app) {
    app.add_option("CHECKPOINT", replay.checkpoint, "Checkpoint root or iteration folder")
        ->required();
    add_value(app, "--grads PATH", replay.gradients,
              "safetensors file with grad{k}.NAME, or the folder of "
              "init_and_grads.safetensors")
        ->required();
    add_iteration(app, replay.iteration, replay.limits);
    add_value(app, "--first K", replay.first, "The recorded step to begin with (default: 0)")
        ->check(kCount);
    add_value(app, "--steps N", replay.steps, "Steps to replay (default: all that are recorded)")
        ->check(kCount);
    app.add_flag("--from-init", replay.from_init,
                 "Start from init.NAME of the gradients file: states zero, schedule at 0");
    add_word(app, "--grad-norm recorded", grad_norm,
             "Clip by the norms of the run.json beside the gradients");
    add_value(app, "--expect PATH", replay.expect,
              "Compare with a checkpoint, or safetensors with model.NAME, fp32_param.NAME, ...");
    tolerance.declare(app);
    declare_junit(app, junit);
    add_value(app, "--dp N", replay.data_parallel,
              "Data-parallel ranks of the layout (default: the checkpoint's)")
        ->check(kSize);
    add_choice<optim::OwnershipPolicy>(app, "--ownership", replay.ownership,
                                       {{"ping-pong", optim::OwnershipPolicy::PingPong},
                                        {"balanced", optim::OwnershipPolicy::Balanced},
                                        {"lpt", optim::OwnershipPolicy::Lpt}})
        ->description("Who updates which parameter (default: ping-pong)");
    add_value(app, "--spawn N", spawn, "Processes to start (default: 1, or torchrun's)")
        ->check(whole_number(1, 1024));
    add_word(app, "--device cpu|cuda", replay.device,
             "Where the steps are computed (default: cpu)");
    declare_era(app, replay.era);
    declare_arguments(app);
    add_value(app, "-o,--output PATH", replay.output,
              "Write the state after the steps as a checkpoint");
    app.add_flag("--force", replay.force, "Replace an existing output");
    app.add_flag("--strict", replay.strict, "Refuse an output that cannot carry something");
    app.add_flag("--verify", replay.verify, "Read the output back before it is published");
  }

  // What counts in place of what the checkpoint says.
  void declare_arguments(CLI::App& app) {
    add_value(app, "--config FILE", config,
              "JSON object of Megatron's arguments that replace the checkpoint's");
    add_word(app, "--tp-mode blockwise|duplicated|distributed", tp_mode,
             "How tensor-parallel ranks orthogonalised (default: muon_tp_mode of args)");
    add_value(app, "--bisect FILE", other_config,
              "Find which arguments of this file the outcome of --expect takes");
  }
};

// While it lives, a signal ends the process at once, also where that waits for a peer or computes:
// until the output is begun, and once it is published, there is nothing to undo.
class EndingAtOnce {
 public:
  EndingAtOnce(Console& console, optim::ReplayOptions& replay) : console_(console) {
    console_.end_at_once_when_stopped(true);
    replay.on_writing = [&console](bool is_writing) {
      console.end_at_once_when_stopped(!is_writing);
    };
  }
  ~EndingAtOnce() { console_.end_at_once_when_stopped(false); }
  EndingAtOnce(const EndingAtOnce&) = delete;
  EndingAtOnce& operator=(const EndingAtOnce&) = delete;

 private:
  Console& console_;
};

optim::ReplayOptions replay_options(const RunOptions& options) {
  optim::ReplayOptions replay = options.replay;
  replay.tolerance = options.tolerance.tolerance();
  replay.recorded_grad_norm = !options.grad_norm.empty();
  replay.processes = find_processes();
  if (!options.config.empty()) replay.overrides = optim::read_overrides(options.config);
  if (!options.tp_mode.empty()) {
    replay.overrides["muon_tp_mode"] = "\"" + options.tp_mode + "\"";
  }
  return replay;
}

int bisect(const RunOptions& options, Console& console) {
  const optim::BisectReport report =
      optim::bisect(replay_options(options), optim::read_overrides(options.other_config));
  console.options().json ? print_json(console, bisect_json(report)) : print_bisect(report, console);
  return report.is_explained ? 0 : 1;
}

int replay(const RunOptions& options, Console& console) {
  optim::ReplayOptions replay = replay_options(options);
  ProgressLine progress(console, "writing");
  progress.leave_terminal_if(replay.processes.rank.rank != 0);
  replay.execute = make_execute_options(console, progress);
  const optim::ReplayReport report = [&] {
    const EndingAtOnce ending(console, replay);
    return optim::replay(replay);
  }();
  if (replay.processes.rank.rank == 0) {  // the others know the same
    for (const std::string& warning : report.warnings) console.warn(warning);
    if (console.options().json) {
      print_json(console, report_json(options.replay, report));
    } else {
      print_report(options.replay, report, console);
    }
    if (!options.junit.empty()) {
      write_whole_file(options.junit, junit_text({"step-replay run", junit_cases(report)}), true);
    }
  }
  return report.passed ? 0 : 1;
}

void check_options(const RunOptions& options) {
  if (options.replay.data_parallel == 0U) {
    refuse_usage("--dp must be at least 1");
  }
  if (options.replay.steps == 0) refuse_usage("--steps must be at least 1");
  if (!options.other_config.empty() && (options.spawn > 1 || !options.junit.empty())) {
    refuse_usage("--bisect works alone: without --spawn and --junit");
  }
  if (options.junit.empty()) return;
  if (options.replay.expect.empty()) {
    refuse_usage("--junit tells of a comparison: give --expect");
  }
  refuse_output(options.junit, options.replay.checkpoint.string());
}

int run(const RunOptions& options, Console& console) {
  check_options(options);
  if (!options.other_config.empty()) return bisect(options, console);
  if (options.spawn == 1 || is_spawned()) return replay(options, console);
  const SpawnResult result =
      spawn_processes(options.arguments, options.spawn, console.stop_token());
  console.out() << result.out << std::flush;
  std::cerr << result.errors << std::flush;
  if (result.killed) throw *result.killed;
  return result.exit_code;
}

}  // namespace

Command make_run_command(std::vector<std::string> arguments) {
  ToolInfo info = {
      .name = "run",
      .description =
          "Replays optimizer steps of a Megatron LayerWise checkpoint; compares or saves the "
          "outcome.",
      .examples =
          {"step-replay run ckpt/ --grads grads.safetensors --from-init --expect state.safetensors",
           "step-replay run ckpt/ --grads grads/ --from-init --dp 4 --expect other_ckpt/",
           "torchrun --no-python --nproc-per-node 4 step-replay run ckpt/ --grads grads/ -o "
           "stepped/"},
      .most_used = {"from-init", "first", "steps", "expect", "atol", "rtol", "dp", "spawn",
                    "config", "bisect", "output", "help", "help-all", "json"},
      .exit_1 = "the outcome differs from --expect; --bisect explains nothing",
      .has_progress = true};
  return {std::move(info), [arguments](CLI::App& app) -> std::function<int(Console&)> {
            auto options = std::make_shared<RunOptions>();
            options->arguments = arguments;
            options->declare(app);
            return [options](Console& console) { return run(*options, console); };
          }};
}

}  // namespace tools::step_replay
