// Options for the form of optimizer state, in Megatron's words, and for parallel sizes, under the
// short names and Megatron's own.
#include <common/conversion.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <common/option_values.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

constexpr const char* kGroup = "Form of the optimizer's state (not given: as the source's)";

using Size = optim::BucketChange::Size;

// Megatron's options have hyphens, its values underscores.
std::string with_underscores(std::string text) {
  for (char& each : text) each = each == '-' ? '_' : each;
  return text;
}

void add_sharding(CLI::App& app, optim::FilingChange& form) {
  std::vector<std::pair<std::string, const optim::Filing*>> choices;
  for (const optim::Filing* const filing : optim::filings()) {
    if (filing->is_written && filing != &optim::kWhole) choices.emplace_back(filing->name, filing);
  }
  CLI::Option* const option = add_choice(app, "--optimizer-sharding", form.filing, choices);
  option->transform(CLI::Validator(
      [](std::string& text) {
        text = with_underscores(text);
        return std::string();
      },
      ""));
  option
      ->description(
          "torch_dist: fully_reshardable or dp_reshardable (ZeRO-1), layer_wise; torch: flat_file "
          "(ZeRO-1), layer_wise")
      ->option_text("FORM");
}

// 0.16 or 0.16.N
bool is_release(const std::string& text, std::string_view release) {
  if (release.empty() || !text.starts_with(release)) return false;
  if (text == release) return true;
  const std::string rest = text[release.size()] == '.' ? text.substr(release.size() + 1) : "";
  return !rest.empty() && rest.size() < 4 &&
         rest.find_first_not_of("0123456789") == std::string::npos;
}

const optim::Release* release_of(const std::string& text) {
  const auto files_so = [&](const optim::Release* one) {
    return std::ranges::count(one->also_called, text) > 0 ||
           std::ranges::any_of(one->cores, [&](auto core) { return is_release(text, core); });
  };
  const auto found = std::ranges::find_if(optim::releases(), files_so);
  return found == optim::releases().end() ? nullptr : *found;
}

std::string refusal_of(const std::string& text) {
  const std::string what = "'" + ckpt::escaped(text) + "' ";
  if (is_release(text, "0.15")) {
    return what + "does not load args of later Megatrons; it reads the layout 0.16 of older ones";
  }
  return what + "is not a release of Megatron-Core from 0.16 to 0.20-dev (docs/compatibility.md)";
}

void add_target_megatron(CLI::App& app, optim::FilingChange& form) {
  const CLI::Validator is_known(
      [](std::string& text) {
        return release_of(text) != nullptr ? std::string() : refusal_of(text);
      },
      "");
  const auto choose = [&form](const std::string& text) {
    form.release = release_of(text);
    form.is_main_branch = std::ranges::count(form.release->also_called, text) > 0;
  };
  app.add_option_function<std::string>("--target-megatron", choose,
                                       "torch_dist: as this release of Megatron-Core lays it out, "
                                       "0.16 to 0.20-dev; fsdp_dtensor: 0.19 or 0.20-dev")
      ->check(is_known)
      ->option_text("CORE");
}

void add_bucket_size(CLI::App& app, optim::BucketChange& buckets) {
  const auto choose = [&buckets](const std::string& text) {
    if (text == "none" || text == "default") {
      buckets.size = text == "none" ? Size::One : Size::Default;
      return;
    }
    buckets.size = Size::Given;
    buckets.element_count = std::stoull(text);
  };
  const CLI::Validator is_size(
      [](std::string& text) {
        if (text == "none" || text == "default" || kSize(text).empty()) return std::string();
        return "'" + ckpt::escaped(text) + "' is not a number of elements, 'none' or 'default'";
      },
      "");
  app.add_option_function<std::string>("--bucket-size,--ddp-bucket-size", choose,
                                       "Elements of a bucket of flat buffers; none: one bucket; "
                                       "default: Megatron's with --overlap-grad-reduce")
      ->check(is_size)
      ->option_text("N|none|default");
}

// Of torch's types, with or without "torch.".
std::optional<ckpt::DType> type_named(std::string text) {
  if (text.starts_with("torch.")) text = text.substr(6);
  return ckpt::dtype_named(text);
}

// NAME=TYPE.
std::optional<optim::StateType> state_type(const std::string& text) {
  const size_t at = text.find('=');
  if (at == 0 || at == std::string::npos) return std::nullopt;
  const auto dtype = type_named(text.substr(at + 1));
  if (!dtype) return std::nullopt;
  return optim::StateType{text.substr(0, at), *dtype};
}

constexpr const char* kBlocks = "fp8-block128";  // float8_e4m3fn, with scales

// [GLOB=]TYPE; a key may hold a '='.
std::optional<ckpt::TypeRule> type_rule(const std::string& text) {
  const size_t at = text.rfind('=');
  const std::string type = at == std::string::npos ? text : text.substr(at + 1);
  if (type == kBlocks && at != 0) {
    return ckpt::TypeRule{at == std::string::npos ? "" : text.substr(0, at),
                          ckpt::DType::Float8E4M3FN};
  }
  const auto dtype = type_named(type);
  if (!dtype || !ckpt::can_round(*dtype) || at == 0) return std::nullopt;
  return ckpt::TypeRule{at == std::string::npos ? "" : text.substr(0, at), *dtype};
}

void add_state_types(CLI::App& app, std::vector<optim::StateType>& types) {
  const CLI::Validator is_type(
      [](std::string& text) {
        return state_type(text)
                   ? std::string()
                   : "'" + ckpt::escaped(text) + "' is not NAME=TYPE, such as exp_avg=float32";
      },
      "");
  const auto add = [&types](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) types.push_back(*state_type(text));
  };
  app.add_option_function<std::vector<std::string>>(
         "--state-dtype", add,
         "Another type for an optimizer state: float32, bfloat16 or float16; repeatable")
      ->check(is_type)
      ->allow_extra_args(false)
      ->option_text("NAME=TYPE");
}

constexpr const char* kSizesGroup = "Sizes (not given: as the source's)";

}  // namespace

void add_types(CLI::App& app, std::vector<ckpt::TypeRule>& types) {
  const CLI::Validator is_rule(
      [](std::string& text) {
        return type_rule(text) ? std::string()
                               : "'" + ckpt::escaped(text) +
                                     "' is not [GLOB=]TYPE, of float32, bfloat16, float16 and "
                                     "fp8-block128";
      },
      "");
  const auto add = [&types](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) types.push_back(*type_rule(text));
  };
  app.add_option_function<std::vector<std::string>>(
         "--dtype", add,
         "Another type for weights, or for those that a key or glob names: float32, bfloat16 or "
         "float16; fp8-block128 for linear layers of a Hugging Face folder; repeatable")
      ->check(is_rule)
      ->allow_extra_args(false)
      ->option_text("[GLOB=]TYPE");
}

void FormOptions::declare(CLI::App& app) {
  const InGroup group(app, kGroup);
  add_sharding(app, form);
  add_target_megatron(app, form);
  add_bucket_size(app, form.buckets);
  app.add_flag("--pad-buckets,--ddp-pad-buckets-for-high-nccl-busbw",
               form.buckets.pad_for_high_nccl_busbw,
               "Pad buckets to multiples of 65536 elements, too");
  add_state_types(app, form.state_types);
}

void SizeOptions::declare(CLI::App& app) {
  const InGroup group(app, kSizesGroup);
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
  add_size(app, "--shards", shards,
           "Files of FSDP's ranks: how many share one replica, of HSDP (default: the source's)");
  add_value(app, "--pipeline-layout,--pipeline-model-parallel-layout LAYOUT", sizes.pipeline_layout,
            "Layers of each stage, as in Megatron: 'Et*3|t*4|t*4L'");
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
  add_value(app, "--vocab-size N", sizes.vocabulary,
            "True size of the vocabulary; rows behind it are padding (default: args.vocab_size)")
      ->check(kSize);
  add_value(app, "--sizes-from OTHER", sizes_from,
            "All sizes as this Megatron checkpoint has them");
  add_value(app, "--model-rules FILE", model_rules,
            "Rows for modules that are not known (docs/schema/input/model_rules.json)");
  add_choice<optim::RngPolicy>(app, "--rng", rng,
                               {{"seed", optim::RngPolicy::Seed},
                                {"keep", optim::RngPolicy::Keep},
                                {"drop", optim::RngPolicy::Drop}})
      ->description(
          "Random states where ranks get other places: seeded from args.seed (default), "
          "the first rank's for all, or none");
}

optim::SizeChange SizeOptions::change() const {
  if (sizes_from.empty()) return sizes;
  if (!sizes.empty()) {
    refuse_usage("--sizes-from gives all sizes; it cannot be combined with one of them");
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
