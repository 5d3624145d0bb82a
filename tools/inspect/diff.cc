// ckpt-inspect diff: what two checkpoints do not have in common. Exit code 1 if they differ.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <string_view>
#include <unordered_map>

#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <nlohmann/json.hpp>

#include <ckpt/diff.h>
#include <ckpt/error.h>
#include <training/diff_summary.h>
#include <training/names_in_common.h>
#include <training/opened_training.h>

#include "inspect/commands.h"
#include "inspect/diff_parts.h"
#include "inspect/listing.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using ckpt::DifferenceKind;

enum class DiffSort : uint8_t { Default, Key, Difference };

struct DiffOptions {
  std::string a, b;
  ckpt::DiffOptions diff;
  ckpt::Limits limits;
  KeyFilter filter;
  std::vector<std::string> renames;
  DiffSort sort = DiffSort::Default;
  size_t limit = SIZE_MAX;
  bool summary = false;
  bool common = false;
  bool is_top = false;
  bool dequantizes = false;

  void declare(CLI::App& app) {
    add_place(app, "A", a, "A checkpoint, as for `ckpt-inspect PATH`");
    add_place(app, "B", b, "A second checkpoint, of any format");
    add_value(app, "--atol X", diff.atol, "Values are equal if |a - b| <= atol + rtol * |b|")
        ->check(kTolerance);
    add_value(app, "--rtol Y", diff.rtol, "The default of both is 0: bit for bit")
        ->check(kTolerance);
    filter.declare(app);
    add_value(app, "--rename FROM=TO", renames,
              "Names that start with FROM, as they are listed, start with TO, in A and in B; "
              "repeatable")
        ->allow_extra_args(false)
        ->check(kRename);
    add_choice<DiffSort>(app, "--sort", sort,
                         {{"key", DiffSort::Key}, {"difference", DiffSort::Difference}})
        ->description("By key (default of --json), or the largest difference first (default)");
    add_value(app, "--limit N", limit, "At most this many differences, or modules")->check(kCount);
    const auto set_top = [this](const std::string& count) {
      limit = std::stoull(count);
      sort = DiffSort::Difference;
      is_top = true;
    };
    app.add_option_function<std::string>(
           "--top", set_top,
           "At most N differences: what is missing or of another type, then the largest")
        ->check(kSize)
        ->option_text("N")
        ->excludes("--sort")
        ->excludes("--limit");
    app.add_flag("--common", common,
                 "Count differences that otherwise are listed as not counted: args of paths and "
                 "sizes, the order of groups, random states of ranks");
    app.add_flag("--summary", summary, "One row per module, the worst first");
    app.add_flag("--dequantize", dequantizes,
                 "Of Hugging Face folders, tensors of fp8 and mxfp4 times their scales");
    add_follow_links(app, limits);
    app.add_flag("--keys-only", diff.keys_only, "Names, shapes and dtypes; reads no tensor");
  }
};

std::string type_text(const ckpt::TensorEntry& tensor) {
  return std::string(name(tensor.dtype)) + " " + shape_text(tensor.shape);
}

std::string where_text(const ckpt::ValueDifference& value) {
  const std::string first =
      shape_text(value.first_index) + ": " + value.first_a + " | " + value.first_b;
  return value.nonfinite_count == 0
             ? first
             : first + ", " + std::to_string(value.nonfinite_count) + " NaN or infinite";
}

// The keys are equal as text.
template <class Difference>
std::string keys_text(const Difference& difference) {
  return "the key is " + std::string(python_type(difference.a->key_kind)) + " | " +
         std::string(python_type(difference.b->key_kind));
}

std::string detail_of(const ckpt::TensorDifference& difference) {
  switch (difference.kind) {
    case DifferenceKind::OnlyInA: return type_text(*difference.a);
    case DifferenceKind::OnlyInB: return type_text(*difference.b);
    case DifferenceKind::DType:
    case DifferenceKind::Shape:
      return type_text(*difference.a) + " | " + type_text(*difference.b) +
             (!difference.is_rounded ? ""
              : difference.value     ? ", differ when rounded"
                                     : ", equal when rounded");
    case DifferenceKind::Key: return keys_text(difference);
    case DifferenceKind::Value: break;  // value_row()
  }
  return {};
}

Cell kind_cell(DifferenceKind kind) {
  static const char* kTexts[] = {"only in A", "only in B", "dtype", "shape", "value", "key"};
  return {kTexts[static_cast<size_t>(kind)], Paint::Yellow};
}

std::string place_text(const std::optional<ckpt::Value>& value) {
  return value ? value_text(*value, 60) : "(absent)";
}

// The names of tensors, and where one is listed twice the types of its keys.
class ShownNames {
 public:
  explicit ShownNames(const ckpt::Differences& differences) {
    for (const ckpt::TensorDifference& tensor : differences.tensors) ++counts_[name_of(tensor)];
  }

  std::string operator()(const ckpt::TensorDifference& tensor) const {
    const std::string name = name_of(tensor);
    if (counts_.at(name) == 1) return name;
    const ckpt::TensorEntry& entry = tensor.a != nullptr ? *tensor.a : *tensor.b;
    return name + " (" + std::string(python_type(entry.key_kind)) + ")";
  }

 private:
  static std::string name_of(const ckpt::TensorDifference& tensor) {
    return ckpt::qualified_key(tensor.file, tensor.key);
  }

  std::unordered_map<std::string, size_t> counts_;
};

std::vector<Cell> value_row(const ckpt::TensorDifference& tensor, std::string name) {
  const ckpt::ValueDifference& value = *tensor.value;
  const auto& ulp = value.max_ulp_distance;
  const auto if_finite = [&](double number) {
    return has_finite(value) ? short_number_text(number) : "-";
  };
  return {{std::move(name), Paint::Bold},
          {if_finite(value.relative_norm())},
          {if_finite(value.max_abs)},
          {if_finite(value.max_rel)},
          {std::to_string(value.different_count) + " of " + std::to_string(value.element_count)},
          {ulp && has_finite(value) ? short_number_text(*ulp) : "-"},
          {where_text(value)}};
}

// The place, and where another one reads the same the type of its key.
std::string pointer_text(const ckpt::ObjectDifference& object, const ckpt::PlaceDifference& place) {
  const auto reads_the_same = [&](const auto& other) { return other.pointer == place.pointer; };
  const bool is_alone = std::ranges::count_if(object.details, reads_the_same) == 1;
  return ckpt::escaped(place.pointer) +
         (is_alone ? "" : " (" + std::string(python_type(place.key_kind)) + ")");
}

void add_object(Table& table, const ckpt::ObjectDifference& object) {
  const std::string object_name = ckpt::qualified_key(object.file, object.key);
  if (object.details.empty()) {
    const bool is_key = object.kind == DifferenceKind::Key;
    table.add_row({kind_cell(object.kind),
                   {object_name, Paint::Bold},
                   {is_key ? keys_text(object) : "object"}});
  }
  for (const ckpt::PlaceDifference& place : object.details) {
    table.add_row({kind_cell(object.kind),
                   {object_name + " " + pointer_text(object, place), Paint::Bold},
                   {place_text(place.a) + " | " + place_text(place.b) +
                    (place.may_be_one ? " (one by value, one by name: may be one member)" : "")}});
  }
  if (object.place_count > object.details.size()) {
    table.add_row(
        {kind_cell(object.kind),
         {object_name, Paint::Bold},
         {"and " + std::to_string(object.place_count - object.details.size()) + " more places"}});
  }
}

// By the names that both sides have, as NamedPair says them.
std::string verdict_on(const Console& console, const ckpt::Differences& differences, bool keys_only,
                       std::string_view names) {
  const std::string how = keys_only ? " (names, shapes and types alone)" : "";
  const std::string tensors =
      count_text(differences.tensor_count, names == "canonical" ? "logical tensor"
                                           : names == "stored"  ? "stored tensor"
                                                                : "tensor");
  const std::string objects = count_text(differences.object_count, "object");
  if (differences.none()) {
    return console.paint(Paint::Green, "equal") + ": " + tensors + ", " + objects + how;
  }
  return console.paint(Paint::Red, "different") + ": " +
         std::to_string(differences.tensors.size()) + " of " + tensors + ", " +
         std::to_string(differences.objects.size()) + " of " + objects + how;
}

// Returns what the verdict says beside its counts.
std::string print_differences(Console& console, const DiffOptions& options,
                              const ckpt::Differences& differences) {
  const auto named_table = [] {
    return Table({{}, {.can_shorten = true, .is_name = true}, {.can_shorten = true}});
  };
  Table table = named_table(), object_table = named_table();
  const auto [tensors, objects] = first_of(differences, options.limit);
  Table values(
      {{.title = "DIFFERENT VALUES", .can_shorten = true, .kept_width = 40, .is_name = true},
       {.title = "REL NORM", .align = Align::Right},
       {.title = "MAX ABS", .align = Align::Right},
       {.title = "MAX REL", .align = Align::Right},
       {.title = "ELEMENTS", .align = Align::Right, .drop_order = 2},
       {.title = "MAX ULP DISTANCE", .align = Align::Right, .drop_order = 1},
       {.title = "FIRST AT", .drop_order = 3}});
  const ShownNames names(differences);
  for (const ckpt::TensorDifference& tensor : tensors) {
    const std::string name = names(tensor);
    if (tensor.value) values.add_row(value_row(tensor, name));
    if (tensor.kind != DifferenceKind::Value) {
      table.add_row({kind_cell(tensor.kind), {name, Paint::Bold}, {detail_of(tensor)}});
    }
  }
  for (const ckpt::ObjectDifference& object : objects) add_object(object_table, object);
  table.print(console);
  values.print(console);
  object_table.print(console);
  const size_t shown = tensors.size() + objects.size();
  const size_t all = differences.tensors.size() + differences.objects.size();
  if (shown == all) return {};
  const std::string more = options.is_top ? ", " + std::to_string(all - shown) + " more" : "";
  return "; " + std::to_string(shown) + " shown" + more;
}

// Returns what the verdict says beside its counts.
std::string print_summary(Console& console, const optim::DiffSummary& summary, size_t limit) {
  const size_t shown = std::min(limit, summary.modules.size());
  Table table({{.title = "MODULE", .can_shorten = true, .kept_width = 24, .is_name = true},
               {.title = "DIFFERENT", .align = Align::Right},
               {.title = "MISSING/TYPE", .align = Align::Right, .drop_order = 4},
               {.title = "NaN/Inf", .align = Align::Right, .drop_order = 3},
               {.title = "REL NORM", .align = Align::Right},
               {.title = "MAX ABS", .align = Align::Right, .drop_order = 5},
               {.title = "MAX REL", .align = Align::Right, .drop_order = 2},
               {.title = "MAX ULP DISTANCE", .align = Align::Right, .drop_order = 1},
               {.title = "WORST", .can_shorten = true, .kept_width = 40}});
  for (const optim::ModuleDifference& module : std::span(summary.modules).first(shown)) {
    const auto& ulp = module.max_ulp_distance;
    const auto if_compared = [&](std::string text) { return module.value_count ? text : "-"; };
    const bool has_only_nonfinite = module.nonfinite_count != 0 && module.max_abs == 0;
    const auto if_finite = [&](double number) {
      return has_only_nonfinite ? "-" : if_compared(short_number_text(number));
    };
    table.add_row(
        {{key_text(module.module), Paint::Bold},
         {std::to_string(module.different_count) + " of " + std::to_string(module.compared_count)},
         {std::to_string(module.structural_count)},
         {if_compared(std::to_string(module.nonfinite_count))},
         {if_finite(module.relative_norm)},
         {if_finite(module.max_abs)},
         {if_finite(module.max_rel)},
         {ulp ? short_number_text(*ulp) : "-"},
         {module.worst + (module.worst_is_structural ? " (missing/type)" : ""), Paint::Dim}});
  }
  if (shown != 0) table.print(console);
  const std::string shown_text =
      shown < summary.modules.size() ? ", " + std::to_string(shown) + " shown" : "";
  return "; " + std::to_string(summary.modules.size()) + " of " +
         count_text(summary.module_count, "module") + shown_text;
}

struct Sides {
  const optim::OpenedTraining &a, &b;
  const char* names;
  const ckpt::Differences& left_out;
  bool have_more;  // both: files that are not compared
};

void print_as_json(Console& console, const DiffOptions& options, const Sides& sides,
                   const optim::Compared& compared) {
  nlohmann::json document = verdict_json(compared.differences);
  document.update({{"a", side_json(sides.a)}, {"b", side_json(sides.b)}, {"names", sides.names}});
  if (sides.left_out.object_count != 0) {
    document["common"]["different"] = json_list(sides.left_out.objects, object_difference_json);
  }
  if (!options.filter.is_everything()) document["selection"] = json_text(options.filter.text());
  if (options.summary) {
    add_modules(document, summarize(compared), options.limit);
  } else {
    add_lists(document, compared.differences, options.limit);
  }
  print_json(console, document);
}

// What differs and is not counted, before what is.
void print_left_out(Console& console, const ckpt::Differences& left_out) {
  constexpr uint64_t kPlacesMax = 4;
  const uint64_t places_max = console.options().verbose ? UINT64_MAX : kPlacesMax;
  uint64_t all = 0, shown = 0;
  Table table({{}, {.can_shorten = true}, {.can_shorten = true}});
  const Cell kind{"not counted", Paint::Dim};
  for (const ckpt::ObjectDifference& object : left_out.objects) {
    all += std::max<uint64_t>(1, object.place_count);
    if (object.details.empty() && shown++ < places_max) {
      table.add_row({kind, {key_text(object.key)}, {kind_cell(object.kind).text}});
    }
    for (const ckpt::PlaceDifference& place : object.details) {
      if (shown >= places_max) break;
      ++shown;
      table.add_row({kind,
                     {key_text(object.key) + " " + ckpt::escaped(place.pointer)},
                     {place_text(place.a) + " | " + place_text(place.b)}});
    }
  }
  if (all == 0) return;
  table.print(console);
  if (shown < all) {
    console.print_text("not counted  and " + count_text(all - shown, "more place") +
                       " of the common state" + (console.options().verbose ? "" : " (--verbose)"));
  }
}

void print_as_text(Console& console, const DiffOptions& options, const Sides& sides,
                   const optim::Compared& compared) {
  if (console.options().quiet) return;
  print_left_out(console, sides.left_out);
  const ckpt::Differences& differences = compared.differences;
  const std::string beside = options.summary
                                 ? print_summary(console, summarize(compared), options.limit)
                                 : print_differences(console, options, differences);
  std::string last = verdict_on(console, differences, options.diff.keys_only, sides.names) + beside;
  if (!options.filter.is_everything()) last += "; of what is selected by " + options.filter.text();
  if (sides.have_more) last += "; files that are not read were not compared";
  console.print_text(last);
}

// Of the common state what canonical names leave out: counted under --common, else told.
ckpt::Differences compare_left_out(const DiffOptions& options, optim::NamedPair& named,
                                   const optim::OpenedTraining& a, const optim::OpenedTraining& b) {
  if (options.common) {
    std::ranges::move(named.left_out_a.objects, std::back_inserter(named.a.objects));
    std::ranges::move(named.left_out_b.objects, std::back_inserter(named.b.objects));
    return {};
  }
  if (options.diff.keys_only || !options.filter.is_everything()) return {};
  return ckpt::diff({named.left_out_a, a}, {named.left_out_b, b});
}

// What is missing of a side, and whether it has files that are not compared.
bool check_side(const optim::OpenedTraining& checkpoint, const std::string& path,
                Console& console) {
  try {
    refuse_missing_files(checkpoint);
  } catch (ckpt::Error& error) {
    throw error.below(path);
  }
  return note_files_beside(checkpoint, console);
}

int run(const DiffOptions& options, Console& console) {
  std::optional<ProgressLine> line(std::in_place, console, "comparing");
  const optim::OpenedTraining a = optim::open_side(options.a, options.limits);
  const optim::OpenedTraining b = optim::open_side(options.b, options.limits);
  const bool a_has_more = check_side(a, options.a, console);
  const bool have_more = check_side(b, options.b, console) && a_has_more;
  optim::NamedPair named = optim::names_in_common(a, b, options.dequantizes);
  for (const std::string& warning : named.warnings) console.warn(warning);
  const ckpt::Differences left_out = compare_left_out(options, named, a, b);
  ckpt::DiffOptions diff_options = options.diff;
  diff_options.old_names = rename(named, options.renames);
  select({&named.a, &named.b}, options.filter, console);
  diff_options.execution = make_execute_options(console, *line);
  const ckpt::PayloadSource& of_a = named.products_a ? *named.products_a : a;
  const ckpt::PayloadSource& of_b = named.products_b ? *named.products_b : b;
  ckpt::Differences differences = diff({named.a, of_a}, {named.b, of_b}, diff_options);
  line.reset();
  if (const auto hint = rename_that_helps(differences)) console.warn(*hint);
  const DiffSort default_sort = console.options().json ? DiffSort::Key : DiffSort::Difference;
  const DiffSort sort = options.sort == DiffSort::Default ? default_sort : options.sort;
  if (sort == DiffSort::Difference) optim::sort_worst_first(differences.tensors);
  const optim::Compared compared{differences, named.a, named.b, options.diff.keys_only};
  const auto print = console.options().json ? print_as_json : print_as_text;
  print(console, options, {a, b, named.names, left_out, have_more}, compared);
  return differences.none() ? 0 : 1;
}

}  // namespace

Command make_diff_command() {
  return make_command<DiffOptions>(
      {.name = "diff",
       .description = "Compares two checkpoints across formats and parallel sizes.",
       .examples = {"ckpt-inspect diff ckpt_a/ ckpt_b/ --summary",
                    "ckpt-inspect diff model.pt dcp/ --atol 1e-6 --rtol 1e-5",
                    "ckpt-inspect diff old/ new/ --top 10 --common"},
       .quiet = "Nothing: the exit code says it",
       .exit_1 = "different",
       .has_progress = true},
      run);
}

}  // namespace tools::inspect
