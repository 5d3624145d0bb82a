// ckpt-inspect show: chunks, statistics and first values of a tensor; the tree of an object.
#include <algorithm>
#include <filesystem>
#include <string_view>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/source_options.h>
#include <common/text.h>
#include <training/subjects.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/facts.h"
#include "inspect/listing.h"
#include "inspect/show_tensor.h"
#include "inspect/statistics_table.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using optim::Subject;

// N or "all".
const CLI::Validator kCountOrAll(
    [](std::string& text) {
      if (text == "all" || kCount(text).empty()) return std::string();
      return "'" + ckpt::escaped(text) + "' is neither a whole number (0 or more) nor all";
    },
    "");

struct ShowOptions {
  SourceOptions source;
  std::vector<std::string> keys;
  KeyFilter filter;
  TensorWishes wishes;
  bool logical = false;
  StatisticsSort sort = StatisticsSort::None;
  bool csv = false;

  void declare(CLI::App& app) {
    source.declare(app);
    add_value(app, "KEY ...", keys,
              "A key as ls or the page prints it, a glob, or a slice 'KEY[0:4, :8]'; FILE:KEY "
              "if several files have the key; dots and slashes are the same");
    filter.declare(app);
    const auto set_values = [this](const std::string& text) {
      wishes.values_max = text == "all" ? UINT64_MAX : std::stoull(text);
    };
    CLI::Option* const values =
        app.add_option_function<std::string>("--values", set_values,
                                             "The first N values, or all, in place of statistics")
            ->check(kCountOrAll)
            ->option_text("N|all");
    CLI::Option* const stats = app.add_flag("--stats", wishes.statistics_only,
                                            "Statistics of all tensors as a table; without KEY of "
                                            "everything")
                                   ->excludes(values);
    add_choice<StatisticsSort>(app, "--sort", sort,
                               {{"norm", StatisticsSort::Norm},
                                {"nan", StatisticsSort::Nan},
                                {"std", StatisticsSort::Std},
                                {"max", StatisticsSort::Max}})
        ->description("Of --stats: the largest first; nan counts infinities, max is of magnitudes")
        ->needs(stats);
    app.add_flag("--csv", csv, "Of --stats: for other programs, with all digits")->needs(stats);
    app.add_flag("--quantiles", wishes.quantiles,
                 "Of --stats: the values below which 1, 50 and 99 % of the finite elements lie, to "
                 "0.05 %")
        ->needs(stats);
    app.add_flag("--histogram", wishes.histogram, "Values by magnitude, drawn as bars")
        ->excludes(values)
        ->excludes(stats);
    app.add_flag("--logical", logical,
                 "KEYs are names of the training state, each tensor once, joined from all ranks");
  }

  optim::SubjectNames names() const {
    return logical ? optim::SubjectNames::Logical : optim::SubjectNames::Any;
  }
};

// The archive of an object must live as long as the value that is shown.
template <class Use>
void with_value(const Subject& subject, const optim::OpenedTraining& checkpoint, Use use) {
  if (subject.object == nullptr) return use(*subject.value);
  const ckpt::Document document = checkpoint.read_object(*subject.object);
  use(document.tree.root());
}

struct Shown {
  const Subject& subject;
  const optim::OpenedTraining& checkpoint;
  const TensorWishes& wishes;
  const optim::RankParts& parts;
  const ckpt::Statistics* statistics = nullptr;  // of a tensor; null: not made yet

  const ckpt::TensorPart* part() const {
    return subject.is_logical ? nullptr : parts.find(subject.key);
  }
};

void print_subject(Console& console, const Shown& shown) {
  const auto& [subject, checkpoint, wishes, parts, statistics] = shown;
  console.print_text(
      console.paint(Paint::Bold, key_text(subject.key) + ckpt::escaped(subject.slice_text)));
  if (const ckpt::TensorPart* part = shown.part()) {
    const std::string whole = part->shape ? ", " + shape_text(*part->shape) + " in all" : "";
    console.print_text("  " + part->words + whole);
  }
  if (subject.tensor != nullptr) {
    return print_tensor(console, ShownTensor(subject, checkpoint), wishes);
  }
  TreeLimits limits;
  if (console.options().verbose) limits = {SIZE_MAX, SIZE_MAX};
  with_value(subject, checkpoint,
             [&](const ckpt::Value& value) { print_tree(console, value, limits); });
}

nlohmann::json subject_to_json(const Shown& shown) {
  const auto& [subject, checkpoint, wishes, parts, statistics] = shown;
  nlohmann::json json = {{"key", json_text(subject.key)}};
  if (const ckpt::TensorPart* part = shown.part()) json["part_of"] = to_json(*part);
  if (subject.slice) json["slice"] = json_text(subject.slice_text);
  if (subject.is_logical) json["names"] = "canonical";
  if (!subject.file.empty()) json["file"] = json_text(subject.file);
  if (subject.tensor != nullptr) {
    json["tensor"] = tensor_to_json(ShownTensor(subject, checkpoint), wishes, statistics);
  } else {
    with_value(subject, checkpoint,
               [&](const ckpt::Value& value) { json["object"] = value_to_json(value); });
  }
  return json;
}

// What KEYs, --include and --exclude name. Throws NotFound where that is nothing.
std::vector<Subject> find_selected(const optim::OpenedTraining& checkpoint,
                                   const ShowOptions& options) {
  KeyFilter filter = options.filter;
  std::vector<Subject> in_state, subjects;
  const bool is_of_all = options.keys.empty() && !options.logical;
  if (is_of_all) in_state = take_from_state(checkpoint, filter);
  if (in_state.empty() || !filter.include.empty()) {
    subjects = optim::find_subjects(checkpoint, options.keys, options.names());
    if (!filter.is_everything()) keep_selected(subjects, filter.selection());
  }
  std::ranges::move(in_state, std::back_inserter(subjects));
  if (options.filter.is_everything()) return subjects;
  if (!subjects.empty()) return subjects;
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {},
                    "no tensor or object is selected by " + options.filter.text(),
                    "ckpt-inspect ls lists the keys");
}

optim::OpenedTraining open_source(const ShowOptions& options) {
  try {
    return options.source.open();
  } catch (ckpt::Error& error) {
    std::error_code unknown;
    for (const std::string& key : options.keys) {
      if (error.code() != ckpt::ErrorCode::NotFound || !std::filesystem::exists(key, unknown))
        continue;
      throw error.hinted("the path comes first: ckpt-inspect show " + ckpt::escaped(key) + " " +
                         ckpt::escaped(options.source.path));
    }
    throw;
  }
}

void print_document(Console& console, const ShowOptions& options,
                    const optim::OpenedTraining& checkpoint, const std::vector<Subject>& subjects) {
  std::vector<ckpt::Statistics> statistics;
  if (!options.wishes.values_max)
    statistics = make_statistics(subjects, checkpoint, options.wishes, console);
  nlohmann::json document = json_document();
  document["entries"] = nlohmann::json::array();
  const optim::RankParts parts(checkpoint);
  size_t next = 0;
  for (const Subject& subject : subjects) {
    const bool has_statistics = subject.tensor != nullptr && !options.wishes.values_max;
    const ckpt::Statistics* const known = has_statistics ? &statistics[next++] : nullptr;
    document["entries"].push_back(
        subject_to_json({subject, checkpoint, options.wishes, parts, known}));
  }
  if (options.sort != StatisticsSort::None) {
    nlohmann::json sorted = nlohmann::json::array();
    for (const size_t place : sorted_places(statistics, options.sort)) {
      sorted.push_back(std::move(document["entries"][place]));
    }
    document["entries"] = std::move(sorted);
  }
  print_json(console, document);
}

// "decoder.layers.mlp.linear_fc1.weight", which has a layer in each row.
bool is_of_stack(std::string_view key) {
  constexpr std::string_view kLayers = "decoder.layers.";
  const size_t at = key.find(kLayers);
  const size_t behind = at + kLayers.size();
  return at != key.npos && behind < key.size() && (key[behind] < '0' || key[behind] > '9');
}

void print_statistics_of(Console& console, const ShowOptions& options,
                         const optim::OpenedTraining& checkpoint,
                         const std::vector<Subject>& subjects) {
  const std::vector<ckpt::Statistics> statistics =
      make_statistics(subjects, checkpoint, options.wishes, console);
  std::vector<NamedStatistics> rows;
  for (size_t i = 0; i < subjects.size(); ++i) {
    const Subject& subject = subjects[i];
    const ShownTensor shown(subject, checkpoint);
    const ckpt::TensorEntry& tensor = shown.source().tensor;
    rows.push_back(
        {ckpt::qualified_key(subject.file, subject.key) + ckpt::escaped(subject.slice_text),
         std::string(name(tensor.dtype)), shape_text(tensor.shape), statistics[i]});
  }
  std::vector<NamedStatistics> sorted;
  for (const size_t place : sorted_places(statistics, options.sort)) {
    sorted.push_back(std::move(rows[place]));
  }
  if (options.csv) return print_statistics_csv(console, sorted);
  print_statistics(console, sorted, options.sort);
  const bool has_stack = std::ranges::any_of(
      subjects, [](const Subject& of) { return !of.is_logical && is_of_stack(of.key); });
  if (has_stack) console.note("layers of one kind are stored as one tensor; --logical shows each");
}

int run(const ShowOptions& options, Console& console) {
  const bool names_nothing = options.keys.empty() && options.filter.include.empty();
  if (names_nothing && !options.wishes.statistics_only) {
    refuse_usage("a KEY or --include is required", "ckpt-inspect ls lists the keys");
  }
  if (options.csv && console.options().json) {
    refuse_usage("--csv cannot be combined with --json");
  }
  const optim::OpenedTraining checkpoint = open_source(options);
  if (options.wishes.statistics_only && options.keys.empty()) {
    note_files_beside(checkpoint, console);
  }
  std::vector<Subject> subjects = find_selected(checkpoint, options);
  if (options.wishes.statistics_only) {
    std::erase_if(subjects, [](const Subject& subject) { return subject.tensor == nullptr; });
  }
  if (console.options().json) {
    print_document(console, options, checkpoint, subjects);
  } else if (options.wishes.statistics_only) {
    print_statistics_of(console, options, checkpoint, subjects);
  } else {
    const optim::RankParts parts(checkpoint);
    for (const Subject& subject : subjects) {
      print_subject(console, {subject, checkpoint, options.wishes, parts});
    }
  }
  return 0;
}

}  // namespace

Command make_show_command() {
  return make_command<ShowOptions>(
      {.name = "show",
       .description =
           "Shows tensors with statistics and values, also slices of them, and objects as trees.",
       .examples = {"ckpt-inspect show ckpt/ 'output_layer.weight[0:4, :8]' --values all",
                    "ckpt-inspect show ckpt/ args.lr args.seed",
                    "ckpt-inspect show ckpt/ --logical '*exp_avg*' --stats"},
       .verbose = "All chunks of tensors, and objects whole",
       .has_progress = true},
      run);
}

}  // namespace tools::inspect
