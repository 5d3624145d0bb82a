// ckpt-convert: the same checkpoint in another format.
#include <common/conversion.h>
#include <common/run_tool.h>
#include <CLI/CLI.hpp>

namespace {

struct ConvertOptions {
  tools::ConversionOptions common;
  std::string to;
  std::optional<uint32_t> data_parallel;

  void declare(CLI::App& app) {
    common.declare(app);
    app.add_option("--to", to, "Format of the destination")
        ->required()
        ->check(CLI::IsMember({"torch", "torch_dist"}));
    app.add_option("--dp", data_parallel, "Data-parallel size of the destination");
  }
};

int convert(const ConvertOptions& options, tools::Console& console) {
  optim::ConvertOptions conversion;
  conversion.format = options.to == "torch" ? ckpt::Format::Torch : ckpt::Format::TorchDist;
  conversion.data_parallel = options.data_parallel;
  return tools::run_conversion(optim::convert, options.common, conversion, console);
}

}  // namespace

int main(int argc, char** argv) {
  const tools::ToolInfo tool = {
      "ckpt-convert",
      "Rewrites a checkpoint in another format; everything that the target can hold is carried.",
      {"ckpt-convert ckpt/ ckpt_torch/ --to torch",
       "ckpt-convert model.pt model_dcp/ --to torch_dist",
       "ckpt-convert ckpt/ elsewhere/ --to torch_dist --dry-run --json"},
      {"--layout", "--include", "--exclude", "--rename", "--zstd", "--max-memory"}};
  return tools::run_tool<ConvertOptions>(tool, argc, argv, convert);
}
