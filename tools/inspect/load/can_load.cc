// ckpt-inspect can-load: whether a model would take its values from a checkpoint, by a listing of
// its keys, and whether Megatron goes on from it. Exit code 0 if so, 1 if not, 4 if not known.
#include <algorithm>
#include <filesystem>
#include <ostream>

#include <common/json.h>
#include <common/junit.h>
#include <common/option_values.h>
#include <common/table.h>
#include <common/text.h>

#include <ckpt/error.h>
#include <ckpt/plain_target.h>
#include <training/layer_wise_checkpoint.h>
#include <training/megatron_folders.h>

#include "common/source_options.h"
#include "inspect/commands.h"
#include "inspect/load/expected_keys.h"
#include "inspect/load/resume_options.h"

namespace tools::inspect {
namespace {

constexpr size_t kRowsMax = 20;      // of a table, where --limit does not say
constexpr size_t kNearestMax = 200;  // keys that a name is looked for that was meant

enum class LoaderChoice : uint8_t { OfFormat, Dcp, Module };

struct CanLoadOptions {
  SourceOptions source;
  std::string expect_keys, below, junit;
  LoaderChoice loader = LoaderChoice::OfFormat;
  bool no_strict = false;
  bool accepts_rounding = false;
  std::vector<std::string> renames;
  size_t limit = kRowsMax;
  ResumeOptions resume;

  void declare(CLI::App& app) {
    source.declare(app);
    resume.declare(app);
    add_value(app, "--expect-keys FILE", expect_keys,
              "The model's tensors: what `ckpt-inspect ls --json` prints, or five lines of "
              "Python (docs/before_you_start.md)");
    add_choice<LoaderChoice>(app, "--loader", loader,
                             {{"dcp", LoaderChoice::Dcp}, {"module", LoaderChoice::Module}})
        ->description(
            "torch.distributed.checkpoint.load (default for its folders), or load_state_dict");
    app.add_flag("--no-strict", no_strict,
                 "As load_state_dict(strict=False), or allow_partial_load of dcp");
    add_value(app, "--below KEY", below,
              "What the training code hands over: \"model\" for load_state_dict(file"
              "[\"model\"])");
    add_value(app, "--rename FROM=TO", renames,
              "Names that start with FROM start with TO, before they are compared; repeatable")
        ->allow_extra_args(false)
        ->check(kRename);
    app.add_flag_callback(
        "--accept-rounding", [this] { accepts_rounding = true; },
        "Exit code 0, too, where values are rounded to the model's types");
    add_value(app, "--limit N", limit, "At most this many rows of each table; default 20")
        ->check(kCount);
    declare_junit(app, junit);
  }
};

// A question and its answer.
struct Answer {
  std::vector<ExpectedTensor> expected;
  ckpt::Inventory stored;
  LoadRules rules;
  LoadFindings findings;
};

std::vector<ckpt::KeyName> names_of(const ckpt::Inventory& inventory) {
  std::vector<ckpt::KeyName> names;
  for (const auto& tensor : inventory.tensors) names.push_back({{}, tensor.key});
  for (const auto& object : inventory.objects) names.push_back({{}, object.key});
  return names;
}

void leave_below(ckpt::Inventory& inventory, const std::string& below) {
  ckpt::KeyRename rename(below, "");
  rename.resolve(names_of(inventory));
  const auto keep_below = [&](auto& entries) {
    std::erase_if(entries, [&](auto& entry) {
      auto key = rename.renamed(entry.key);
      if (!key || key->empty()) return true;
      entry.key = *std::move(key);
      return false;
    });
  };
  keep_below(inventory.tensors);
  keep_below(inventory.objects);
}

void rename_all(ckpt::Inventory& inventory, const std::vector<std::string>& texts) {
  ckpt::KeyRules rules;
  for (const std::string& text : texts) {
    const auto [from, to] = split_rename(text);
    rules.renames.emplace_back(from, to);
  }
  rules.resolve(names_of(inventory));
  for (auto& tensor : inventory.tensors) tensor.key = rules.renamed(tensor.key);
  for (auto& object : inventory.objects) object.key = rules.renamed(object.key);
}

LoadRules rules_of(const CanLoadOptions& options, ckpt::Format format) {
  const bool is_dcp =
      options.loader == LoaderChoice::Dcp ||
      (options.loader == LoaderChoice::OfFormat && format == ckpt::Format::TorchDist);
  if (is_dcp && format != ckpt::Format::TorchDist) {
    throw ckpt::Error(
        ckpt::ErrorCode::InvalidArgument, {.file = options.source.path, .key = {}},
        "--loader dcp reads folders with a .metadata file; this is " + std::string(name(format)),
        "--loader module is what load_state_dict does");
  }
  return {is_dcp ? Loader::Dcp : Loader::Module, !options.no_strict};
}

ckpt::Inventory stored_tensors(const optim::OpenedTraining& opened) {
  try {
    return plain_inventory(opened, ckpt::KeyTypes::AsText);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, error.where(),
                      "this is a Megatron checkpoint: which tensors a rank expects depends on the "
                      "run's sizes",
                      "--target-megatron RELEASE says whether Megatron loads it");
  }
}

Answer answer(const CanLoadOptions& options, Console& console) {
  Answer answer;
  const optim::OpenedTraining opened = options.source.open();
  refuse_missing_files(opened);
  note_files_beside(opened, console);
  answer.rules = rules_of(options, opened.catalog().format);
  answer.expected = read_expected_keys(options.expect_keys);
  answer.stored = stored_tensors(opened);
  join_places(answer.stored);
  if (!options.below.empty()) leave_below(answer.stored, options.below);
  if (!options.renames.empty()) rename_all(answer.stored, options.renames);
  answer.findings = can_load(answer.expected, answer.stored, answer.rules);
  return answer;
}

// The front that all names of the model lack: "model" where the checkpoint has "model.fc.weight"
// and the model "fc.weight".
std::string front_that_lacks(const Answer& answer) {
  if (answer.findings.loaded_count != 0 || answer.expected.empty()) return {};
  const std::string& first = answer.expected.front().key;
  for (const auto& tensor : answer.stored.tensors) {
    if (!tensor.key.ends_with("." + first)) continue;
    const std::string front = tensor.key.substr(0, tensor.key.size() - first.size() - 1);
    ckpt::Inventory below = answer.stored;
    leave_below(below, front);
    const auto findings = can_load(answer.expected, below, answer.rules);
    if (findings.missing.size() < answer.expected.size() / 2 + 1) return front;
    return {};
  }
  return {};
}

std::string call_text(const LoadRules& rules) {
  if (rules.loader == Loader::Dcp) {
    return std::string("torch.distributed.checkpoint.load") +
           (rules.is_strict ? "" : " with allow_partial_load");
  }
  return std::string("load_state_dict(strict=") + (rules.is_strict ? "True" : "False") + ")";
}

std::string verdict_text(const Answer& answer) {
  const auto& findings = answer.findings;
  const std::string call = call_text(answer.rules);
  switch (findings.verdict) {
    case LoadVerdict::Loads: return "loads: " + call + " takes every value as it is stored";
    case LoadVerdict::Rounds:
      return "rounds: " + call + " takes all tensors, and rounds " +
             count_text(findings.rounded.size(), "tensor") + " to the model's types";
    case LoadVerdict::LeavesOut:
      return "leaves out: " + call + " raises nothing, and " +
             std::to_string(findings.missing.size() + findings.objects.size()) +
             " of the model's tensors keep the values that it was made with, but for those that "
             "share memory with one that is loaded";
    case LoadVerdict::Refuses:
      return "refuses: " + call + " raises" +
             (answer.rules.loader == Loader::Dcp ? ": " + ckpt::escaped(findings.message) : "");
    case LoadVerdict::NotKnown: return "not known: " + findings.message;
  }
  return {};
}

// Names that one table shows, and the closest of the checkpoint's that the model does not ask for.
std::string closest(const Answer& answer, const std::string& key,
                    const std::vector<ckpt::KeyName>& free) {
  if (answer.findings.missing.size() > kNearestMax) return {};
  return nearest_key(key, free).value_or("");
}

std::vector<ckpt::KeyName> unexpected_names(const Answer& answer) {
  std::vector<ckpt::KeyName> names;
  for (const size_t i : answer.findings.unexpected) {
    names.push_back({{}, answer.stored.tensors[i].key});
  }
  return names;
}

// Tables of what differs, each below a blank line.
struct Tables {
  Console& console;
  const Answer& answer;
  size_t limit;  // of rows

  template <class List, class AsRow>
  void print(std::vector<Column> columns, const List& list, const AsRow& as_row) const {
    if (list.empty()) return;
    Table table(std::move(columns));
    for (size_t i = 0; i < std::min(list.size(), limit); ++i) table.add_row(as_row(list[i]));
    console.out() << '\n';
    table.print(console);
    if (list.size() <= limit) return;
    const std::string more = std::to_string(list.size() - limit) + " more: --limit";
    console.out() << console.paint(Paint::Dim, more) << '\n';
  }

  // Name, type and shape.
  static std::vector<Cell> row_of(const auto& tensor) {
    return {{ckpt::printed_key(tensor.key)},
            {std::string(name(tensor.dtype))},
            {ckpt::shape_text(tensor.shape)}};
  }

  void print_missing() const {
    const auto free = unexpected_names(answer);
    print({{"MISSING", Align::Left, true}, {"DTYPE"}, {"SHAPE"}, {"CLOSEST", Align::Left, true, 1}},
          answer.findings.missing, [&](size_t i) {
            std::vector<Cell> row = row_of(answer.expected[i]);
            row.push_back({closest(answer, answer.expected[i].key, free)});
            return row;
          });
  }

  void print_unexpected() const {
    print({{"NOT ASKED FOR", Align::Left, true}, {"DTYPE"}, {"SHAPE"}}, answer.findings.unexpected,
          [&](size_t i) { return row_of(answer.stored.tensors[i]); });
  }

  void print_pairs(const char* title, const std::vector<LoadedPair>& pairs) const {
    const auto type = [](const auto& tensor) {
      return std::string(name(tensor.dtype)) + " " + ckpt::shape_text(tensor.shape);
    };
    print({{title, Align::Left, true}, {"MODEL"}, {"CHECKPOINT"}}, pairs,
          [&](const LoadedPair& pair) -> std::vector<Cell> {
            const ExpectedTensor& wanted = answer.expected[pair.first];
            return {{ckpt::printed_key(wanted.key)},
                    {type(wanted)},
                    {type(answer.stored.tensors[pair.second])}};
          });
  }
};

void print_answer(Console& console, const Answer& answer, size_t limit) {
  const auto& findings = answer.findings;
  console.out() << verdict_text(answer) << '\n';
  if (console.options().quiet) return;
  console.out() << "found: " << findings.loaded_count << " of the model's "
                << count_text(answer.expected.size(), "tensor")
                << "; not asked for: " << findings.unexpected.size() << " of the checkpoint's\n";
  const Tables tables{console, answer, limit};
  tables.print_missing();
  for (const size_t i : findings.objects) {
    console.warn("'" + ckpt::escaped(answer.expected[i].key) +
                 "' is not a tensor in the checkpoint");
  }
  tables.print_pairs("OTHER SHAPE", findings.other_shape);
  tables.print_pairs("ROUNDED", findings.rounded);
  tables.print_pairs("WIDENED", findings.widened);
  const bool is_refused_for_more =
      findings.verdict == LoadVerdict::Refuses && answer.rules.is_strict;
  if (is_refused_for_more || findings.verdict == LoadVerdict::LeavesOut) {
    tables.print_unexpected();
  }
  const std::string front = front_that_lacks(answer);
  if (!front.empty()) {
    console.note("the checkpoint has the model's names below '" + ckpt::escaped(front) +
                 "': --below " + shell_word(front));
  }
}

nlohmann::json tensor_json(const std::string& key, ckpt::DType dtype, const ckpt::Extents& shape) {
  return {{"key", json_text(key)},
          {"dtype", name(dtype)},
          {"shape", std::vector<uint64_t>(shape.begin(), shape.end())}};
}

void print_answer_as_json(Console& console, const Answer& answer) {
  const auto& [expected, stored, rules, findings] = answer;
  const auto wanted_json = [&](size_t i) {
    return tensor_json(answer.expected[i].key, answer.expected[i].dtype, answer.expected[i].shape);
  };
  const auto found_json = [&](size_t i) {
    const ckpt::TensorEntry& tensor = answer.stored.tensors[i];
    return tensor_json(tensor.key, tensor.dtype, tensor.shape);
  };
  const auto pair_json = [&](const LoadedPair& pair) -> nlohmann::json {
    return {{"model", wanted_json(pair.first)}, {"checkpoint", found_json(pair.second)}};
  };
  nlohmann::json document = json_document();
  document["verdict"] = name(findings.verdict);
  document["message"] = json_text(findings.message);
  document["loader"] = name(rules.loader);
  document["strict"] = rules.is_strict;
  document["loaded"] = findings.loaded_count;
  document["missing"] = json_list(findings.missing, wanted_json);
  document["unexpected"] = json_list(findings.unexpected, found_json);
  document["objects"] = json_list(findings.objects, wanted_json);
  document["unexpected_objects"] = json_list(findings.unexpected_objects, [&](size_t i) {
    return json_text(answer.stored.objects[i].key);
  });
  document["other_shape"] = json_list(findings.other_shape, pair_json);
  document["rounded"] = json_list(findings.rounded, pair_json);
  document["widened"] = json_list(findings.widened, pair_json);
  print_json(console, document);
}

int exit_code(const Answer& answer, bool accepts_rounding) {
  switch (answer.findings.verdict) {
    case LoadVerdict::Loads: return 0;
    case LoadVerdict::Rounds: return accepts_rounding ? 0 : 1;
    case LoadVerdict::NotKnown: return 4;
    default: return 1;
  }
}

// A root whose tracker is missing, which Megatron takes for a start from nothing.
bool is_root_without_tracker(const std::filesystem::path& path) {
  if (ckpt::kind_at(path) != ckpt::EntryKind::Folder) return false;
  bool has_iterations = false;
  for (const std::string& name : ckpt::source_of(path)->list(path)) {
    if (name == optim::kMegatronFolders.tracker || name == ".metadata") return false;
    has_iterations = has_iterations || name.starts_with("iter_") || name == "release";
  }
  return has_iterations;
}

// With the path in the place of CKPT.
ResumeCertificate named(ResumeCertificate certificate, const std::string& path) {
  const size_t name = certificate.mend.find("CKPT");
  if (name != certificate.mend.npos) certificate.mend.replace(name, 4, shell_word(path));
  return certificate;
}

// For JUnit, of which the one case fails where the exit code is not 0.
using Cases = std::vector<JunitCase>;

int finish(const CanLoadOptions& options, Console& console, Cases& cases,
           ResumeCertificate certificate) {
  certificate = named(std::move(certificate), options.source.path);
  const int code = print_certificate(console, certificate, options.resume.accepts_next_step);
  cases.push_back(
      {options.source.path, code == 0 ? "" : verdict_text(certificate), details_text(certificate)});
  return code;
}

// Empty, with a note, where it is not known.
std::vector<optim::RankReads> reads_of(const optim::OpenedTraining& opened,
                                       const optim::FiledState& state,
                                       const optim::LoadRequest& request, Console& console) {
  try {
    return reads_of_ranks(opened, state, request);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    console.note(std::string("what each rank reads is not known: ") + error.what());
    return {};
  }
}

int run_of_megatron(const CanLoadOptions& options, Console& console, Cases& cases) {
  if (!options.source.iteration && is_root_without_tracker(options.source.path)) {
    return finish(options, console, cases, certificate_without_tracker());
  }
  const optim::OpenedTraining opened = options.source.open();
  refuse_missing_files(opened);
  const optim::FiledState state = read_training_state(opened);
  const ResumeFacts facts = resume_facts(opened, state);
  const ResumeRun run = options.resume.run(facts);
  const auto grid = grid_of_run(state, run);
  ResumeCertificate certificate = certify(facts, run);
  const bool loads = certificate.verdict != ResumeVerdict::Refuses &&
                     certificate.verdict != ResumeVerdict::NotKnown;
  if (loads && grid) {
    certificate.ranks = reads_of(opened, state, {*grid, certificate.loads_optimizer}, console);
  }
  return finish(options, console, cases, std::move(certificate));
}

int run_either(const CanLoadOptions& options, Console& console, Cases& cases) {
  if (options.expect_keys.empty()) return run_of_megatron(options, console, cases);
  if (options.resume.are_given()) {
    refuse_usage(
        "--expect-keys asks for a model's tensors, the other options for a run of "
        "Megatron; they do not go together",
        "ask twice");
  }
  const Answer found = answer(options, console);
  console.options().json ? print_answer_as_json(console, found)
                         : print_answer(console, found, options.limit);
  const int code = exit_code(found, options.accepts_rounding);
  cases.push_back(
      {options.source.path, code == 0 ? "" : verdict_text(found), found.findings.message});
  return code;
}

int run(const CanLoadOptions& options, Console& console) {
  return with_junit({options.junit, "ckpt-inspect can-load", options.source.path},
                    [&](Cases& cases) { return run_either(options, console, cases); });
}

}  // namespace

Command make_can_load_command() {
  return make_command<CanLoadOptions>(
      {.name = "can-load",
       .description = "Says whether Megatron goes on from a checkpoint with a run's arguments, or "
                      "whether a model takes its values from it, and why not; exit code 4 if that "
                      "is not known.",
       .examples = {"ckpt-inspect can-load ckpt/ --target-megatron 0.19 --launch run.sh",
                    "ckpt-inspect can-load ckpt/ --target-megatron 0.16 --dp 4 --accept-next-step",
                    "ckpt-inspect can-load model.pt --expect-keys weights.json --below model"},
       .most_used = {"target-megatron", "launch", "arg", "tp", "pp", "dp", "ep", "world-size",
                     "accept-next-step", "expect-keys", "below", "help", "help-all", "json"},
       .quiet = "The verdict alone",
       .exit_1 = "it does not load, or not every value"},
      run);
}

}  // namespace tools::inspect
