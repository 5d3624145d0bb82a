#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <replay/trace.h>
#include <step_replay/commands.h>

namespace tools::step_replay {
namespace {

struct RecordOptions {
  optim::ReplayOptions replay;
  std::string folder, config, grad_norm;

  void declare(CLI::App& app) {
    app.add_option("CHECKPOINT", replay.checkpoint, "Checkpoint root or iteration folder")
        ->required();
    add_value(app, "--grads PATH", replay.gradients, "Gradients, as step-replay run takes them")
        ->required();
    add_value(app, "-o,--output FOLDER", folder, "Folder of the traces, which is made")->required();
    add_value(app, "--iteration N", replay.iteration, "Iteration of a checkpoint root")
        ->check(kCount);
    add_follow_links(app, replay.limits);
    add_value(app, "--first K", replay.first, "The recorded step to begin with (default: 0)")
        ->check(kCount);
    add_value(app, "--steps N", replay.steps, "Steps to record (default: all that there are)")
        ->check(kSize);
    app.add_flag("--from-init", replay.from_init, "Start from init.NAME of the gradients file");
    add_word(app, "--grad-norm recorded", grad_norm,
             "Clip by the norms of the run.json beside the gradients");
    add_value(app, "--config FILE", config,
              "JSON object of Megatron's arguments that replace the checkpoint's");
    declare_era(app, replay.era);
  }
};

int record(const RecordOptions& options, Console& console) {
  optim::ReplayOptions replay = options.replay;
  replay.recorded_grad_norm = !options.grad_norm.empty();
  if (!options.config.empty()) replay.overrides = optim::read_overrides(options.config);
  const auto written = optim::record_traces(replay, options.folder);
  if (console.options().json) {
    nlohmann::json document = json_document();
    document["traces"] =
        json_list(written, [](const auto& file) { return json_text(file.string()); });
    print_json(console, document);
    return 0;
  }
  for (const auto& file : written) console.out() << ckpt::escaped(file.string()) << "\n";
  return 0;
}

}  // namespace

Command make_record_command() {
  return make_command<RecordOptions>(
      {.name = "record",
       .description = "Replays steps and writes them as traces, one of each parameter group, which "
                      "step-replay check replays.",
       .examples = {"step-replay record ckpt/ --grads grads.safetensors -o traces/",
                    "step-replay record ckpt/ --grads run/wgrads --steps 1 -o traces/",
                    "step-replay check traces/*.json"}},
      record);
}

}  // namespace tools::step_replay
