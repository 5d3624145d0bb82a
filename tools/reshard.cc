// reshard: the same checkpoint for another data-parallel size.
#include <common/conversion.h>
#include <common/option_values.h>
#include <common/run_tool.h>
#include <CLI/CLI.hpp>

namespace {

struct ReshardOptions {
  tools::ConversionOptions common;
  uint32_t data_parallel = 0;
  bool link = false;

  void declare(CLI::App& app) {
    common.declare(app);
    app.add_option("--dp", data_parallel, "Data-parallel size of the destination")
        ->required()
        ->check(tools::kSize)
        ->option_text("N");
    app.add_flag("--link", link,
                 "Share all files but the common state with the source (torch_dist)");
  }
};

int reshard(const ReshardOptions& options, tools::Console& console) {
  const auto run = [&options](const tools::ConversionOrder& order) {
    return optim::reshard(order.source, order.destination,
                          {.base = order.base,
                           .sizes = {.data_parallel = options.data_parallel},
                           .into = order.into,
                           .link = options.link,
                           .ownership = order.ownership});
  };
  return tools::run_conversion(run, options.common, {}, console);
}

}  // namespace

int main(int argc, char** argv) {
  const tools::ToolInfo tool = {
      .name = "reshard",
      .description = "Rewrites a LayerWise checkpoint for another data-parallel size.",
      .examples = {"reshard ckpt/ ckpt_dp4/ --dp 4",
                   "reshard ckpt/iter_0000003 iteration_dp1/ --dp 1",
                   "reshard ckpt/ ckpt_dp8/ --dp 8 --ownership balanced --dry-run"},
      .unbuilt = {"--cp", "--ep", "--etp"},
      .quiet = "Only what was not carried",
      .verbose = "The files that are written",
      .has_progress = true};
  return tools::run_tool<ReshardOptions>(tool, argc, argv, reshard);
}
