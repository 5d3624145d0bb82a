#include <iostream>
#include <memory>
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/table.h>
#include <common/text.h>
#include <optim/replay.h>
#include <step_replay/commands.h>
#include <step_replay/difference_json.h>
#include <step_replay/era_option.h>
#include <step_replay/processes.h>
#include <step_replay/tolerance_options.h>

namespace tools::step_replay {
namespace {

using nlohmann::json;

struct RunOptions {
  optim::ReplayOptions replay;
  ToleranceOptions tolerance;
  int spawn = 1;
  std::string grad_norm;
  std::vector<std::string> arguments;  // the whole command line

  void declare(CLI::App& app) {
    app.add_option("CHECKPOINT", replay.checkpoint, "Checkpoint root or iteration folder")
        ->required();
    app.add_option("--grads", replay.gradients,
                   "safetensors file with grad{k}.NAME, or the folder of "
                   "init_and_grads.safetensors")
        ->required()
        ->option_text("PATH");
    app.add_option("--iteration", replay.iteration,
                   "Iteration of a checkpoint root (default: the one that "
                   "latest_checkpointed_iteration.txt names)")
        ->check(kCount)
        ->option_text("N");
    add_follow_links(app, replay.limits);
    app.add_option("--first", replay.first, "The recorded step to begin with (default: 0)")
        ->check(kCount)
        ->option_text("K");
    app.add_option("--steps", replay.steps, "Steps to replay (default: all that are recorded)")
        ->check(kCount)
        ->option_text("N");
    app.add_flag("--from-init", replay.from_init,
                 "Start from init.NAME of the gradients file: states zero, schedule at 0");
    app.add_option("--grad-norm", grad_norm,
                   "Clip by the norms of the run.json beside the gradients")
        ->check(one_of({"recorded"}))
        ->option_text("recorded");
    app.add_option(
           "--expect", replay.expect,
           "Compare with a checkpoint, or safetensors with model.NAME, fp32_param.NAME, ...")
        ->option_text("PATH");
    tolerance.declare(app);
    app.add_option("--dp", replay.data_parallel,
                   "Data-parallel ranks of the layout (default: the checkpoint's)")
        ->check(kSize)
        ->option_text("N");
    add_choice<optim::OwnershipPolicy>(app, "--ownership", replay.ownership,
                                       {{"ping-pong", optim::OwnershipPolicy::PingPong},
                                        {"balanced", optim::OwnershipPolicy::Balanced},
                                        {"lpt", optim::OwnershipPolicy::Lpt}})
        ->description("Who updates which parameter (default: ping-pong)");
    app.add_option("--spawn", spawn, "Processes to start (default: 1, or torchrun's)")
        ->check(CLI::Range(1, 1024).description(""))
        ->option_text("N");
    app.add_option("--device", replay.device, "Where the steps are computed (default: cpu)")
        ->check(one_of({"cpu", "cuda"}))
        ->option_text("cpu|cuda");
    declare_era(app, replay.era);
    add_choice<std::optional<optim::AdamArithmetic>>(
        app, "--adam-arithmetic", replay.adam_arithmetic,
        {{"torch", optim::AdamArithmetic::Torch},
         {"fused-adam", optim::AdamArithmetic::FusedAdam},
         {"torch-fused", optim::AdamArithmetic::TorchFused}})
        ->description("Whose Adam rounds (default: whose groups they are)");
    app.add_option("-o,--output", replay.output, "Write the state after the steps as a checkpoint")
        ->option_text("PATH");
    app.add_flag("--force", replay.force, "Replace an existing output");
    app.add_flag("--strict", replay.strict, "Refuse an output that cannot carry something");
    app.add_flag("--verify", replay.verify, "Read the output back before it is published");
  }
};

json report_json(const RunOptions& options, const optim::ReplayReport& report) {
  json document = json_document();
  document["checkpoint"] = json_text(options.replay.checkpoint.string());
  document["data_parallel"] = report.data_parallel;
  document["processes"] = report.processes;
  document["first_iteration"] = report.first_iteration;
  document["steps"] = json::array();
  for (const optim::ReplayedStep& step : report.steps) {
    document["steps"].push_back({{"lr", step.lr},
                                 {"grad_norm", finite(step.grad_norm)},
                                 {"grad_norm_used", finite(step.grad_norm_used)},
                                 {"num_zeros", step.num_zeros}});
  }
  if (!options.replay.expect.empty()) {
    json kinds = json::array();
    for (const optim::ComparedKind& kind : report.compared) {
      kinds.push_back({{"kind", kind.kind},
                       {"tensors", kind.tensors},
                       {"equal", kind.equal},
                       {"passed", kind.passed},
                       {"worst", difference_json(kind.worst_tensor, kind.worst)}});
    }
    document["expected"] = {{"path", json_text(options.replay.expect.string())},
                            {"passed", report.passed},
                            {"kinds", std::move(kinds)}};
  }
  if (!options.replay.output.empty()) {
    document["output"] = json_text(options.replay.output.string());
    document["not_carried"] = json::array();
    for (const std::string& lost : report.not_carried) {
      document["not_carried"].push_back(json_text(lost));
    }
  }
  return document;
}

void print_steps(const optim::ReplayReport& report, Console& console) {
  Table table({{"iteration", Align::Right},
               {"lr", Align::Right},
               {"grad norm", Align::Right},
               {"clipped by", Align::Right},
               {"zeros", Align::Right}});
  int64_t iteration = report.first_iteration;
  for (const optim::ReplayedStep& step : report.steps) {
    table.add_row({{std::to_string(++iteration)},
                   {number_text(step.lr)},
                   {number_text(step.grad_norm)},
                   {number_text(step.grad_norm_used)},
                   {std::to_string(step.num_zeros)}});
  }
  table.print(console);
}

void print_comparison(const RunOptions& options, const optim::ReplayReport& report,
                      Console& console) {
  console.out() << "\ncompared with " << ckpt::escaped(options.replay.expect.string()) << "\n";
  Table table({{"state"},
               {"tensors", Align::Right},
               {"bitwise equal", Align::Right},
               {"result"},
               {"max abs", Align::Right},
               {.title = "max scaled ulp", .align = Align::Right, .drop_order = 1},
               {.title = "worst tensor", .can_shorten = true}});
  for (const optim::ComparedKind& kind : report.compared) {
    const bool differs = kind.equal != kind.tensors;
    table.add_row({{kind.kind},
                   {std::to_string(kind.tensors)},
                   {std::to_string(kind.equal)},
                   {kind.passed ? "passed" : "FAILED", kind.passed ? Paint::Green : Paint::Red},
                   {short_number_text(kind.worst.max_abs)},
                   {short_number_text(kind.worst.max_ulp)},
                   {differs ? ckpt::escaped(kind.worst_tensor) : ""}});
  }
  table.print(console);
}

void print_report(const RunOptions& options, const optim::ReplayReport& report, Console& console) {
  console.print_text(ckpt::escaped(options.replay.checkpoint.string()) + ": " +
                     count_text(report.data_parallel, "data-parallel rank") + " in " +
                     std::to_string(report.processes) +
                     (report.processes == 1 ? " process" : " processes"));
  print_steps(report, console);
  if (!options.replay.expect.empty()) print_comparison(options, report, console);
  if (!options.replay.output.empty()) {
    console.out() << "\nwrote " << ckpt::escaped(options.replay.output.string()) << "\n";
    for (const std::string& lost : report.not_carried) {
      console.print_text("not carried: " + ckpt::escaped(lost));
    }
  }
}

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

int replay(const RunOptions& options, Console& console) {
  optim::ReplayOptions replay = options.replay;
  replay.tolerance = options.tolerance.tolerance();
  replay.recorded_grad_norm = !options.grad_norm.empty();
  replay.processes = find_processes();
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
      print_json(console, report_json(options, report));
    } else {
      print_report(options, report, console);
    }
  }
  return report.passed ? 0 : 1;
}

void check_options(const RunOptions& options) {
  const auto refuse = [](ckpt::ErrorCode code, const std::string& problem) {
    throw ckpt::Error(code, {}, problem);
  };
  if (options.replay.data_parallel == 0U) {
    refuse(ckpt::ErrorCode::InvalidArgument, "--dp must be at least 1");
  }
  if (options.replay.steps == 0)
    refuse(ckpt::ErrorCode::InvalidArgument, "--steps must be at least 1");
}

int run(const RunOptions& options, Console& console) {
  check_options(options);
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
      .unbuilt = {"--config"},
      .exit_1 = "the outcome differs from --expect",
      .has_progress = true};
  return {std::move(info), [arguments](CLI::App& app) -> std::function<int(Console&)> {
            auto options = std::make_shared<RunOptions>();
            options->arguments = arguments;
            options->declare(app);
            return [options](Console& console) { return run(*options, console); };
          }};
}

}  // namespace tools::step_replay
