// ckpt-convert average, ckpt-convert merge-adapter: models out of several.

#include <common/conversion.h>
#include <common/option_values.h>
#include <common/text.h>
#include <programs.h>
#include <training/combine.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

struct AverageOptions {
  ConversionOptions common;
  std::vector<std::string> sources;
  std::vector<double> weights;

  void declare(CLI::App& app) {
    app.add_option("SOURCES", sources, "Checkpoints of one model: two or more")->required();
    common.declare_result(app);
    add_value(app, "--weights X,Y,...", weights, "A weight for each source (default: 1)")
        ->delimiter(',');
  }
};

int run_average(const AverageOptions& options, Console& console) {
  ConversionOptions common = options.common;
  common.source = options.sources.front();
  const auto run = [&](const ConversionOrder& order) {
    const std::vector<std::filesystem::path> sources(options.sources.begin(),
                                                     options.sources.end());
    return optim::average(sources, order.destination, options.weights, order.options);
  };
  return run_conversion(run, common, {}, console);
}

struct MergeOptions {
  ConversionOptions common;
  optim::HuggingFaceOptions names;
  std::string adapter, args_from;

  void declare(CLI::App& app) {
    app.add_option("BASE", common.source, "Hugging Face folder, or checkpoint of Megatron")
        ->required();
    app.add_option("ADAPTER", adapter,
                   "PEFT folder: adapter_config.json, adapter_model.safetensors")
        ->required();
    common.declare_result(app);
    add_value(app, "--names auto|FAMILY|FILE", names.names,
              "Of a checkpoint of Megatron: its table of names (default: auto)");
    add_value(app, "--args-from FILE|FOLDER", args_from,
              "Arguments that such a checkpoint lacks: a JSON object, or a Hugging Face folder");
  }
};

int run_merge(const MergeOptions& options, Console& console) {
  const auto run = [&](const ConversionOrder& order) {
    return optim::merge_adapter(order.source, options.adapter, order.destination, order.options);
  };
  optim::ConvertOptions all;
  all.hugging_face = options.names;
  all.hugging_face->args_from = options.args_from;
  return run_conversion(run, options.common, std::move(all), console);
}

}  // namespace

std::vector<Command> combine_commands() {
  const ToolInfo average = info_of_writing(
      {.name = "average",
       .description =
           "Writes the mean of several checkpoints of one model, summed in float32 and rounded "
           "once, without their optimizers.",
       .examples = {"ckpt-convert average -o mean/ ckpt_a/ ckpt_b/",
                    "ckpt-convert average -o mean/ ckpt_a/ ckpt_b/ --weights 1,3",
                    "ckpt-convert average -o mean_hf/ exported/ exported/ --verify"}});
  const ToolInfo merge = info_of_writing(
      {.name = "merge-adapter",
       .description =
           "Writes a Hugging Face folder, or the model of a checkpoint of Megatron, with a LoRA "
           "adapter of PEFT in its weights.",
       .examples = {"ckpt-convert merge-adapter exported/ adapter/ -o merged/",
                    "ckpt-convert merge-adapter exported/ adapter/ -o merged/ --verify",
                    "ckpt-convert merge-adapter exported/ adapter/ -o merged/ --dry-run"}});
  return {make_command<AverageOptions>(average, run_average),
          make_command<MergeOptions>(merge, run_merge)};
}

}  // namespace tools
