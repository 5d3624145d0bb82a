// Options for parallel sizes, under the short names and Megatron's own.
#include <common/size_options.h>

#include <common/option_values.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

constexpr const char* kGroup = "Sizes (not given: as the source's)";

void add_size(CLI::App& app, const std::string& names, std::optional<uint32_t>& size,
              const std::string& description) {
  app.add_option(names, size, description)->check(kSize)->option_text("N")->group(kGroup);
}

}  // namespace

void SizeOptions::declare(CLI::App& app) {
  add_size(app, "--dp,--data-parallel-size", sizes.data_parallel,
           "Data-parallel size, as Megatron counts it: without context, with expert parallelism");
  add_size(app, "--tp,--tensor-model-parallel-size", sizes.tensor_parallel, "Tensor-parallel size");
  add_size(app, "--pp,--pipeline-model-parallel-size", sizes.pipeline_parallel,
           "Pipeline-parallel size");
  add_size(app, "--vpp,--num-virtual-stages-per-pipeline-rank", sizes.virtual_pipeline_parallel,
           "Model chunks on each pipeline rank");
  add_size(app, "--cp,--context-parallel-size", sizes.context_parallel, "Context-parallel size");
  add_size(app, "--ep,--expert-model-parallel-size", sizes.expert_parallel, "Expert-parallel size");
  add_size(app, "--etp,--expert-tensor-parallel-size", sizes.expert_tensor_parallel,
           "Expert-tensor-parallel size (default: follows --tp where they were equal)");
  app.add_option("--pipeline-layout,--pipeline-model-parallel-layout", sizes.pipeline_layout,
                 "Layers of each stage, as in Megatron: 'Et*3|t*4|t*4L'")
      ->option_text("LAYOUT")
      ->group(kGroup);
  add_size(app, "--first-stage-layers", sizes.first_stage_layers,
           "Layers of the first pipeline stage (also --decoder-first-pipeline-num-layers)");
  add_size(app, "--last-stage-layers", sizes.last_stage_layers,
           "Layers of the last pipeline stage (also --decoder-last-pipeline-num-layers)");
  // Names that are too long for a column of help.
  app.add_option("--decoder-first-pipeline-num-layers", sizes.first_stage_layers)
      ->check(kSize)
      ->group("");
  app.add_option("--decoder-last-pipeline-num-layers", sizes.last_stage_layers)
      ->check(kSize)
      ->group("");
  app.add_option(
         "--vocab-size", sizes.vocabulary,
         "True size of the vocabulary; rows behind it are padding (default: args.vocab_size)")
      ->check(kSize)
      ->option_text("N")
      ->group(kGroup);
  app.add_option("--sizes-from", sizes_from, "All sizes as this Megatron checkpoint has them")
      ->option_text("OTHER")
      ->group(kGroup);
  app.add_option("--model-rules", model_rules,
                 "Rows for modules that are not known (docs/schema/input/model_rules.json)")
      ->option_text("FILE")
      ->group(kGroup);
  add_choice<optim::RngPolicy>(app, "--rng", rng,
                               {{"seed", optim::RngPolicy::Seed},
                                {"keep", optim::RngPolicy::Keep},
                                {"drop", optim::RngPolicy::Drop}})
      ->description(
          "Random states where ranks get other places: seeded from args.seed (default), "
          "the first rank's for all, or none")
      ->group(kGroup);
}

optim::SizeChange SizeOptions::change() const {
  if (sizes_from.empty()) return sizes;
  if (!sizes.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "--sizes-from gives all sizes; it cannot be combined with one of them");
  }
  return optim::sizes_of(sizes_from);
}

std::string grid_text(const optim::RunGrid& grid, bool has_experts) {
  const optim::ParallelSizes& sizes = grid.sizes;
  const auto part = [](const char* name, uint64_t size) {
    return std::string(name) + " " + std::to_string(size) + "  ";
  };
  std::string text = part("TP", sizes.tensor_parallel) + part("PP", sizes.pipeline_parallel);
  if (sizes.virtual_pipeline_parallel > 1) text += part("VPP", sizes.virtual_pipeline_parallel);
  text += part("CP", sizes.context_parallel) + part("DP", sizes.data_parallel);
  if (has_experts) {
    text += "experts: " + part("ETP", sizes.expert_tensor_parallel) +
            part("EP", sizes.expert_parallel) + part("DP", sizes.expt_dp());
  }
  text += "(" + std::to_string(sizes.world()) + (sizes.world() == 1 ? " rank" : " ranks");
  if (grid.optimizer_instances > 1) {
    text += ", " + std::to_string(grid.optimizer_instances) + " optimizer instances";
  }
  return text + ")";
}

}  // namespace tools
