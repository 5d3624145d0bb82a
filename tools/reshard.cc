// reshard: the same checkpoint for other parallel sizes.
#include <common/conversion.h>
#include <common/run_tool.h>
#include <programs.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

struct ReshardOptions {
  ConversionOptions common;
  bool link = false;

  void declare(CLI::App& app) {
    common.declare(app);
    app.add_flag("--link", link,
                 "Share all files but what the sizes change with the source (torch_dist)");
  }
};

int reshard(const ReshardOptions& options, Console& console) {
  const auto run = [](const ConversionOrder& order) {
    return optim::reshard(order.source, order.destination, order.options);
  };
  return run_conversion(run, options.common, {.base = {}, .link = options.link}, console);
}

}  // namespace

Program reshard_program() {
  const ToolInfo tool = {
      .name = "reshard",
      .description = "Rewrites a Megatron checkpoint for other parallel sizes.",
      .examples = {"reshard ckpt/ ckpt_dp4/ --dp 4",
                   "reshard ckpt/ ckpt_tp2pp2/ --tp 2 --pp 2 --world-size 8 --dry-run",
                   "reshard ckpt/iter_0000003 iteration_dp8/ --dp 8 --link"},
      .most_used = {"tp", "pp", "dp", "ep", "vpp", "world-size", "sizes-from", "optimizer-sharding",
                    "target-megatron", "into", "iteration", "model-only", "link", "dry-run",
                    "verify", "force", "help", "help-all", "json"},
      .quiet = "Only what was not carried",
      .verbose = "The files that are written",
      .has_progress = true};
  ToolInfo alone = tool;
  alone.name.clear();
  return {tool, {make_command<ReshardOptions>(alone, reshard)}};
}

}  // namespace tools
