// ckpt-convert: the same checkpoint in another format.

#include <common/conversion.h>
#include <common/follow.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/run_tool.h>
#include <common/source_options.h>
#include <common/text.h>
#include <common/whole_file.h>
#include <programs.h>
#include <training/names_check.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

// What --to names: a format, or a form of one.
struct Destination {
  std::optional<ckpt::Format> format;
  bool is_hugging_face = false, is_fsdp_dtensor = false, is_peft = false, is_rank_files = false;
  bool is_torch_dcp = false;
};

// Of --to huggingface.
struct NamesOptions {
  optim::HuggingFaceOptions all;
  std::string args_from, tokenizer_from;

  static constexpr const char* kGroup = "Hugging Face folders (docs/huggingface.md)";

  void declare_table(CLI::App& app) {
    const InGroup group(app, kGroup);
    add_value(app, "--names auto|FAMILY|FILE|none", all.names,
              "Table of names: auto (default: what args or config.json say), a family, a file; "
              "none keeps a folder's own names");
    add_value(
        app, "--args-from FILE|FOLDER", args_from,
        "Arguments that the source lacks: a JSON object, or a Hugging Face folder of the same "
        "architecture; for an import a Megatron checkpoint, too");
    add_choice(app, "--weights", all.masters, {{"model", false}, {"master", true}})
        ->description("Weights as the model has them (default), or their float32 masters");
  }
  void declare(CLI::App& app) {
    declare_table(app);
    const InGroup group(app, kGroup);
    add_value(app, "--tokenizer-from FOLDER", tokenizer_from,
              "Copy the tokenizer of this folder, and its numbers of special tokens");
    add_value(app, "--shard-size BYTES", all.shard_bytes,
              "Most bytes of tensors in one file (default: 5000000000)")
        ->transform(kBytes);
  }
  bool is_given_for_export() const {
    return all.masters || all.shard_bytes != optim::HuggingFaceOptions().shard_bytes ||
           !tokenizer_from.empty();
  }
  optim::HuggingFaceOptions options() const {
    optim::HuggingFaceOptions made = all;
    made.args_from = args_from;
    made.tokenizer_from = tokenizer_from;
    return made;
  }
};

struct ConvertOptions {
  ConversionOptions common;
  FollowOptions follow;
  Destination to;
  NamesOptions names;
  bool integrity = false;
  std::optional<int> zstd_level;
  std::string mesh_device = "cuda";
  KeyFilter filter;
  std::vector<std::string> renames;

  void declare(CLI::App& app) {
    common.declare(app);
    follow.declare(app);
    std::vector<std::pair<std::string, Destination>> formats;
    for (const ckpt::Format format : ckpt::target_formats())
      formats.emplace_back(name(format), Destination{format});
    formats.emplace_back("huggingface", Destination{ckpt::Format::Safetensors, true});
    formats.emplace_back("peft", Destination{ckpt::Format::Safetensors, false, false, true});
    formats.emplace_back("fsdp_dtensor", Destination{ckpt::Format::TorchDist, false, true});
    formats.emplace_back("torch_dcp",
                         Destination{.format = ckpt::Format::TorchDist, .is_torch_dcp = true});
    formats.emplace_back("rank_files",
                         Destination{.format = ckpt::Format::Torch, .is_rank_files = true});
    add_choice(app, "--to", to, formats)
        ->description(
            "Format of the destination (default: safetensors or torch, where its name ends in "
            ".safetensors, .pt or .pth)");
    add_choice(app, "--layout", common.form.form.release,
               {{"seed", &optim::kCore016}, {"2026-08", &optim::kCore019}})
        ->description("The same as --target-megatron: seed is 0.16, 2026-08 is 0.20-dev")
        ->excludes("--target-megatron")
        ->each([this](const std::string& text) {
          common.form.form.is_main_branch = text == "2026-08";
        });
    app.add_flag("--integrity", integrity,
                 "torch_dist: write integrity.json, as Megatron's --verify-integrity reads it");
    add_value(app, "--zstd N", zstd_level,
              "torch_dist: compress as PyTorch's ZStandard extension does, level 1 to 19")
        ->check(whole_number(1, 19));
    add_word(app, "--mesh-device cuda|cpu|npu|xpu", mesh_device,
             "rank_files: the device type of the ranks' mesh, where the source does not say "
             "it (default: cuda)");
    filter.declare(app);
    add_value(app, "--rename FROM=TO", renames,
              "Replace the key, or the start of keys, FROM by TO; repeatable")
        ->allow_extra_args(false)
        ->check(kRename);
    names.declare(app);
  }
};

ckpt::KeyRules rules_of(const ConvertOptions& options) {
  ckpt::KeyRules rules;
  rules.selection = options.filter.selection();
  for (const std::string& text : options.renames) {
    const auto [from, to] = split_rename(text);
    rules.renames.emplace_back(from, to);
  }
  return rules;
}

// What the name of a file says it is to be.
std::optional<ckpt::Format> format_of_suffix(const std::string& destination) {
  const std::string suffix = std::filesystem::path(destination).extension().string();
  if (suffix == ".safetensors") return ckpt::Format::Safetensors;
  if (suffix == ".pt" || suffix == ".pth") return ckpt::Format::Torch;
  return std::nullopt;
}

int convert(const ConvertOptions& options, Console& console) {
  const bool writes = !options.common.lists_repairs && !options.common.clean;
  const auto format =
      options.to.format ? options.to.format : format_of_suffix(options.common.target());
  if (writes && !format) {
    refuse_usage("--to is required",
                 "the destination's name says it where it ends in .safetensors or .pt");
  }
  optim::ConvertOptions all;
  all.base.format = format;
  all.fsdp_dtensor = options.to.is_fsdp_dtensor;
  all.torch_dcp = options.to.is_torch_dcp;
  all.peft = options.to.is_peft;
  all.rank_files = options.to.is_rank_files;
  all.mesh_device = options.mesh_device;
  if (options.to.is_hugging_face || (all.peft && !options.names.is_given_for_export())) {
    all.hugging_face = options.names.options();
  } else if (options.names.is_given_for_export()) {
    refuse_usage("--tokenizer-from, --weights and --shard-size are for --to huggingface");
  } else {
    all.imported = options.names.options();
  }
  all.base.keys = rules_of(options);
  all.base.integrity = options.integrity;
  all.base.zstd_level = options.zstd_level;
  const auto run = [](const ConversionOrder& order) {
    return optim::convert(order.source, order.destination, order.options);
  };
  if (!options.follow.is_on) {
    return run_conversion(run, options.common, std::move(all), console);
  }
  return follow(options.follow, options.common, console, [&](const ConversionOptions& one) {
    return run_conversion(run, one, all, console);
  });
}

// ckpt-convert finish: --finish as a command.
int finish(const ConvertOptions& options, Console& console) {
  ConvertOptions all = options;
  all.common.finish = true;
  return convert(all, console);
}

// ckpt-convert repair: without a DESTINATION a list; else all that can be repaired, or --repair's.
int repair(const ConvertOptions& options, Console& console) {
  ConvertOptions all = options;
  ConversionOptions& common = all.common;
  common.lists_repairs |= common.target().empty();
  if (common.lists_repairs) return convert(all, console);
  if (common.repair.kinds.empty()) {
    const optim::FindRepairsOptions where{common.iteration, common.limits, common.repair.like};
    for (const optim::RepairFinding& found : optim::find_repairs(common.source, where)) {
      if (found.verdict == optim::RepairFinding::Verdict::Mendable)
        common.repair.kinds.push_back(found.kind);
    }
  }
  if (common.repair.kinds.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {common.source},
                      "nothing in it is wrong in a way that can be repaired",
                      "ckpt-inspect verify lists all that is wrong");
  }
  if (!all.to.format) {
    all.to.format =
        optim::open_checkpoint(common.source, {common.iteration, common.limits}).catalog().format;
  }
  return convert(all, console);
}

// ckpt-convert clean DESTINATION
struct CleanOptions {
  ConversionOptions common;

  void declare(CLI::App& app) {
    app.add_option("DESTINATION", common.destination,
                   "What an interrupted run was to write; it is left as it is")
        ->required();
  }
};

int clean(const CleanOptions& options, Console& console) {
  ConversionOptions common = options.common;
  common.clean = true;
  return run_conversion({}, common, {}, console);
}

// ckpt-convert names check|learn CHECKPOINT FOLDER
struct NamesCheckOptions {
  std::string action, checkpoint, folder, output;
  bool force = false;
  NamesOptions names;
  std::vector<ckpt::TypeRule> types;
  ckpt::Limits limits;

  void declare(CLI::App& app) {
    app.add_option("ACTION", action, "check a table, or learn one from the two")
        ->required()
        ->check(one_of({"check", "learn"}));
    app.add_option("CHECKPOINT", checkpoint, "Training checkpoint of Megatron")->required();
    app.add_option("FOLDER", folder, "Hugging Face folder of the same model")->required();
    add_value(app, "-o,--output FILE", output, "Of learn: the table that is written");
    app.add_flag("--force", force, "Replace FILE if it exists");
    add_follow_links(app, limits);
    add_types(app, types);
    names.declare_table(app);
  }
};

using Notes = std::vector<optim::NamesLearned::Note>;

nlohmann::json notes_to_json(const Notes& notes) {
  return json_list(notes, [](const auto& note) -> nlohmann::json {
    return {{"key", json_text(note.key)}, {"problem", json_text(note.text)}};
  });
}

void print_learned(const optim::NamesLearned& learned, const std::string& output,
                   Console& console) {
  const auto print = [&](const char* title, const Notes& notes) {
    if (!notes.empty()) console.print_text(title);
    for (const auto& [key, text] : notes) {
      console.print_text("  " + ckpt::escaped(key) + ": " + ckpt::escaped(text));
    }
  };
  print("equal values:", learned.ties);
  print("not told by content:", learned.not_by_content);
  print("not explained:", learned.unexplained);
  if (!learned.left_out.empty()) console.print_text("not in the table:");
  for (const std::string& name : learned.left_out) console.print_text("  " + ckpt::escaped(name));
  console.print_text(
      std::string(learned.is_whole() ? "whole: " : "not whole: ") +
      count_text(learned.row_count, "row") + ", " + count_text(learned.equal_count, "tensor") +
      " made to the bit, not explained: " + std::to_string(learned.unexplained.size()) + "  " +
      ckpt::escaped(output));
}

int learn_names(const NamesCheckOptions& options, Console& console) {
  const bool is_told_table = options.names.all.names != "auto" || options.names.all.masters;
  if (options.output.empty() || is_told_table || !options.types.empty()) {
    refuse_usage(options.output.empty() ? "-o FILE is required"
                                        : "--names, --weights and --dtype are for names check");
  }
  refuse_output(options.output, options.checkpoint);
  refuse_output(options.output, options.folder);
  if (!options.force) refuse_existing(options.output);
  optim::ConvertOptions all;
  all.base.limits = options.limits;
  all.hugging_face = options.names.options();
  const optim::NamesLearned learned = optim::learn_names(options.checkpoint, options.folder, all);
  write_whole_file(options.output, learned.table, options.force);
  if (console.options().json) {
    nlohmann::json document = json_document();
    document["whole"] = learned.is_whole();
    document["rows"] = learned.row_count;
    document["equal"] = learned.equal_count;
    document["ties"] = notes_to_json(learned.ties);
    document["not_by_content"] = notes_to_json(learned.not_by_content);
    document["not_explained"] = notes_to_json(learned.unexplained);
    document["left_out"] = json_texts(learned.left_out);
    print_json(console, document);
  } else {
    print_learned(learned, options.output, console);
  }
  return learned.is_whole() ? 0 : 1;
}

int check_names(const NamesCheckOptions& options, Console& console) {
  if (options.action == "learn") return learn_names(options, console);
  if (!options.output.empty() || options.force) {
    refuse_usage("-o and --force are for names learn");
  }
  optim::ConvertOptions all;
  all.base.limits = options.limits;
  all.base.types = options.types;
  all.hugging_face = options.names.options();
  const optim::NamesCheck check = optim::check_names(options.checkpoint, options.folder, all);
  if (console.options().json) {
    nlohmann::json document = json_document();
    document["names"] = json_text(check.names);
    document["equal"] = check.equal_count;
    document["differences"] = json_list(check.differences, [](const auto& each) -> nlohmann::json {
      return {{"key", json_text(each.key)}, {"problem", json_text(each.problem)}};
    });
    print_json(console, document);
  } else {
    for (const auto& [key, problem] : check.differences) {
      console.print_text(ckpt::escaped(key) + ": " + problem);
    }
    console.print_text("equal: " + count_text(check.equal_count, "tensor") +
                       ", different: " + std::to_string(check.differences.size()) + "  (" +
                       ckpt::escaped(check.names) + ")");
  }
  return check.differences.empty() ? 0 : 1;
}

// What is done about a run that was interrupted or shared, and about a damaged checkpoint.
std::vector<Command> commands_after_a_run() {
  const ToolInfo repair_info = info_of_writing(
      {.name = "repair",
       .description =
           "Lists what is wrong with a checkpoint in a known way; with a DESTINATION writes it "
           "repaired, in its own format where --to names none.",
       .examples = {"ckpt-convert repair ckpt/",
                    "ckpt-convert repair ckpt/ repaired/ --accept-loss",
                    "ckpt-convert repair ckpt/ repaired/ --repair common-state --like other_ckpt/"},
       .most_used = {"repair", "accept-loss", "like", "to", "iteration", "dry-run", "verify",
                     "force", "help", "help-all", "json"}});
  const ToolInfo finish_info = info_of_writing(
      {.name = "finish",
       .description = "Publishes what several processes have written: the same options as theirs.",
       .examples = {"ckpt-convert finish ckpt/ out/ --to torch_dist",
                    "ckpt-convert finish ckpt/ out/ --to torch --verify",
                    "ckpt-convert finish ckpt/ out/ --to torch_dist --tp 2 --json"},
       .most_used = {"to", "into", "tp", "pp", "verify", "force", "help", "help-all", "json"}});
  const ToolInfo clean_info = {
      .name = "clean",
      .description = "Removes what an interrupted run has left beside a destination.",
      .examples = {"ckpt-convert clean out/", "ckpt-convert clean model.safetensors",
                   "ckpt-convert clean s3://bucket/out --json"}};
  return {make_command<ConvertOptions>(repair_info, repair),
          make_command<ConvertOptions>(finish_info, finish),
          make_command<CleanOptions>(clean_info, clean)};
}

}  // namespace

Program convert_program() {
  const ToolInfo tool = info_of_writing(
      {.name = "ckpt-convert",
       .description =
           "Rewrites a checkpoint in another format; everything that the target can hold is "
           "carried.",
       .examples = {"ckpt-convert ckpt/ model.safetensors --model-only",
                    "ckpt-convert llama/ model_hf/ --to huggingface",
                    "ckpt-convert exported/ start/ --to torch_dist"},
       .most_used = {"to", "into", "iteration", "include", "exclude", "model-only", "dtype", "tp",
                     "pp", "target-megatron", "follow", "dry-run", "verify", "force", "resume",
                     "help", "help-all", "json"}});
  ToolInfo alone = tool;
  alone.name.clear();
  const ToolInfo names = {
      .name = "names",
      .description =
          "Says whether a table of names explains a checkpoint and a Hugging Face folder, "
          "tensor by tensor; or finds such a table in what both hold.",
      .examples = {"ckpt-convert names check llama/ exported/",
                   "ckpt-convert names check llama/ exported/ --names llama",
                   "ckpt-convert names learn llama/ exported/ -o names.json"},
      .exit_1 = "a tensor differs, or is not there; what was learned does not explain all"};
  std::vector<Command> commands = {make_command<ConvertOptions>(alone, convert),
                                   make_command<NamesCheckOptions>(names, check_names)};
  for (Command& command : commands_after_a_run()) commands.push_back(std::move(command));
  for (Command& command : combine_commands()) commands.push_back(std::move(command));
  return {tool, std::move(commands)};
}

}  // namespace tools
