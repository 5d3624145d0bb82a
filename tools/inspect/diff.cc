// ckpt-inspect diff: what two checkpoints do not have in common. Exit code 1 if they differ.
#include <algorithm>
#include <optional>
#include <ostream>
#include <span>

#include <ckpt/diff.h>
#include <ckpt/error.h>
#include <common/json.h>
#include <common/key_filter.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <optim/diff_summary.h>
#include <optim/names_in_common.h>

#include "inspect/commands.h"
#include "inspect/listing.h"
#include "inspect/selection.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using ckpt::DifferenceKind;

constexpr int kDiffSchemaVersion = 2;  // 1: max_ulp, without counts

enum class DiffSort : uint8_t { Default, Key, Difference };

struct DiffOptions {
  std::string a, b;
  ckpt::DiffOptions diff;
  ckpt::Limits limits;
  KeyFilter filter;
  DiffSort sort = DiffSort::Default;
  size_t limit = SIZE_MAX;
  bool summary = false;

  void declare(CLI::App& app) {
    app.add_option("A", a, "A checkpoint, as for `ckpt-inspect PATH`")
        ->required()
        ->option_text(" ");
    app.add_option("B", b, "A second checkpoint, of any format")->required()->option_text(" ");
    app.add_option("--atol", diff.atol, "Values are equal if |a - b| <= atol + rtol * |b|")
        ->check(kTolerance)
        ->option_text("X");
    app.add_option("--rtol", diff.rtol, "The default of both is 0: bit for bit")
        ->check(kTolerance)
        ->option_text("Y");
    filter.declare(app);
    add_choice<DiffSort>(app, "--sort", sort,
                         {{"key", DiffSort::Key}, {"difference", DiffSort::Difference}})
        ->description("By key (default of --json), or the largest difference first (default)");
    app.add_option("--limit", limit, "At most this many differences, or modules")
        ->check(kCount)
        ->option_text("N");
    app.add_flag("--summary", summary, "One row per module, the worst first");
    add_follow_links(app, limits);
    app.add_flag("--keys-only", diff.keys_only, "Names, shapes and dtypes; reads no tensor");
  }
};

std::string type_text(const ckpt::TensorEntry& tensor) {
  return std::string(name(tensor.dtype)) + " " + shape_text(tensor.shape);
}

std::string value_difference_text(const ckpt::ValueDifference& value) {
  std::string text = std::to_string(value.different_count) + " of " +
                     std::to_string(value.element_count) + " differ, max abs " +
                     short_number_text(value.max_abs) + ", max rel " +
                     short_number_text(value.max_rel);
  if (value.nonfinite_count != 0) {
    text += ", " + std::to_string(value.nonfinite_count) + " NaN or infinite";
  }
  if (value.max_ulp_distance)
    text += ", max ULP distance " + short_number_text(*value.max_ulp_distance);
  return text + ", first at " + shape_text(value.first_index) + ": " + value.first_a + " | " +
         value.first_b;
}

std::string_view python_type(ckpt::Kind key) {
  static constexpr std::string_view kNames[] = {
      "None", "bool",  "int",  "int", "float",     "str",   "bytes",  "bytearray",
      "list", "tuple", "dict", "set", "frozenset", "class", "object", "storage"};
  return kNames[static_cast<size_t>(key)];
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
    case DifferenceKind::Shape: return type_text(*difference.a) + " | " + type_text(*difference.b);
    case DifferenceKind::Value: return value_difference_text(*difference.value);
    case DifferenceKind::Key: return keys_text(difference);
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
                   {object_name + " " + ckpt::escaped(place.pointer), Paint::Bold},
                   {place_text(place.a) + " | " + place_text(place.b)}});
  }
  if (object.place_count > object.details.size()) {
    table.add_row(
        {kind_cell(object.kind),
         {object_name, Paint::Bold},
         {"and " + std::to_string(object.place_count - object.details.size()) + " more places"}});
  }
}

void print_verdict(Console& console, const ckpt::Differences& differences) {
  const std::string tensors = count_text(differences.tensor_count, "tensor");
  const std::string objects = count_text(differences.object_count, "object");
  if (differences.none()) {
    console.out() << console.paint(Paint::Green, "equal") << ": " << tensors << ", " << objects;
  } else {
    console.out() << console.paint(Paint::Red, "different") << ": " << differences.tensors.size()
                  << " of " << tensors << ", " << differences.objects.size() << " of " << objects;
  }
}

void print_differences(Console& console, const ckpt::Differences& differences, size_t limit) {
  Table table({{}, {.can_shorten = true}, {.can_shorten = true}});
  const size_t tensor_count = std::min(limit, differences.tensors.size());
  const size_t object_count = std::min(limit - tensor_count, differences.objects.size());
  for (const auto& tensor : std::span(differences.tensors).first(tensor_count)) {
    table.add_row({kind_cell(tensor.kind),
                   {ckpt::qualified_key(tensor.file, tensor.key), Paint::Bold},
                   {detail_of(tensor)}});
  }
  for (const auto& object : std::span(differences.objects).first(object_count)) {
    add_object(table, object);
  }
  table.print(console);
  print_verdict(console, differences);
  const size_t shown = tensor_count + object_count;
  if (shown < differences.tensors.size() + differences.objects.size()) {
    console.out() << "; " << shown << " shown";
  }
}

Table module_table() {
  return Table({{.title = "MODULE", .can_shorten = true},
                {.title = "DIFFERENT", .align = Align::Right},
                {.title = "MISSING/TYPE", .align = Align::Right},
                {.title = "NaN/Inf", .align = Align::Right, .drop_order = 3},
                {.title = "MAX ABS", .align = Align::Right},
                {.title = "MAX REL", .align = Align::Right},
                {.title = "MAX ULP DISTANCE", .align = Align::Right, .drop_order = 2},
                {.title = "WORST", .can_shorten = true, .drop_order = 1}});
}

void print_summary(Console& console, const ckpt::Differences& differences,
                   const optim::DiffSummary& summary, size_t limit) {
  const size_t shown = std::min(limit, summary.modules.size());
  Table table = module_table();
  for (const optim::ModuleDifference& module : std::span(summary.modules).first(shown)) {
    const auto& ulp = module.max_ulp_distance;
    const auto if_compared = [&](std::string text) { return module.value_count ? text : "-"; };
    table.add_row(
        {{key_text(module.module), Paint::Bold},
         {std::to_string(module.different_count) + " of " + std::to_string(module.compared_count)},
         {std::to_string(module.structural_count)},
         {if_compared(std::to_string(module.nonfinite_count))},
         {if_compared(short_number_text(module.max_abs))},
         {if_compared(short_number_text(module.max_rel))},
         {ulp ? short_number_text(*ulp) : "-"},
         {module.worst, Paint::Dim}});
  }
  if (shown != 0) table.print(console);
  print_verdict(console, differences);
  console.out() << "; " << summary.modules.size() << " of "
                << count_text(summary.module_count, "module");
  if (shown < summary.modules.size()) console.out() << ", " << shown << " shown";
}

nlohmann::json to_json(const ckpt::ValueDifference& value) {
  nlohmann::json json = {{"elements", value.element_count},    {"different", value.different_count},
                         {"nonfinite", value.nonfinite_count}, {"max_abs", value.max_abs},
                         {"max_rel", value.max_rel},           {"first_index", value.first_index},
                         {"first_a", value.first_a},           {"first_b", value.first_b}};
  if (value.max_ulp_distance) json["max_ulp_distance"] = *value.max_ulp_distance;
  return json;
}

template <class Difference>
nlohmann::json name_and_kind(const Difference& difference) {
  nlohmann::json json = {{"kind", name(difference.kind)}, {"key", json_text(difference.key)}};
  if (!difference.file.empty()) json["file"] = json_text(difference.file);
  return json;
}

template <class Difference>
void add_key_types(const Difference& difference, nlohmann::json& json) {
  if (difference.kind != DifferenceKind::Key) return;
  json["key_types"] = {python_type(difference.a->key_kind), python_type(difference.b->key_kind)};
}

nlohmann::json to_json(const ckpt::TensorDifference& tensor) {
  nlohmann::json json = name_and_kind(tensor);
  if (tensor.a != nullptr)
    json["a"] = {{"dtype", name(tensor.a->dtype)}, {"shape", tensor.a->shape}};
  if (tensor.b != nullptr)
    json["b"] = {{"dtype", name(tensor.b->dtype)}, {"shape", tensor.b->shape}};
  if (tensor.value) json["value"] = to_json(*tensor.value);
  add_key_types(tensor, json);
  return json;
}

nlohmann::json to_json(const ckpt::ObjectDifference& object) {
  nlohmann::json json = name_and_kind(object);
  add_key_types(object, json);
  json["places"] = object.place_count;
  json["details"] = nlohmann::json::array();
  for (const ckpt::PlaceDifference& place : object.details) {
    nlohmann::json detail = {{"pointer", json_text(place.pointer)}};
    if (place.a) detail["a"] = json_text(value_text(*place.a, SIZE_MAX));
    if (place.b) detail["b"] = json_text(value_text(*place.b, SIZE_MAX));
    json["details"].push_back(std::move(detail));
  }
  return json;
}

nlohmann::json to_json(const ckpt::Checkpoint& checkpoint) {
  return {{"path", json_text(checkpoint.shown_path())},
          {"format", name(checkpoint.catalog().format)}};
}

nlohmann::json to_json(const ckpt::Differences& differences) {
  nlohmann::json document = json_document();
  document["schema_version"] = kDiffSchemaVersion;
  document["equal"] = differences.none();
  document["tensors"] = {{"compared", differences.tensor_count},
                         {"different_count", differences.tensors.size()}};
  document["objects"] = {{"compared", differences.object_count},
                         {"different_count", differences.objects.size()}};
  return document;
}

void add_lists(nlohmann::json& document, const ckpt::Differences& differences, size_t limit) {
  nlohmann::json& tensors = document["tensors"]["different"] = nlohmann::json::array();
  nlohmann::json& objects = document["objects"]["different"] = nlohmann::json::array();
  for (const auto& tensor : differences.tensors) {
    if (tensors.size() < limit) tensors.push_back(to_json(tensor));
  }
  for (const auto& object : differences.objects) {
    if (tensors.size() + objects.size() < limit) objects.push_back(to_json(object));
  }
}

nlohmann::json to_json(const optim::ModuleDifference& module) {
  nlohmann::json json = {{"module", json_text(module.module)},
                         {"compared", module.compared_count},
                         {"different", module.different_count},
                         {"missing_or_type", module.structural_count},
                         {"nonfinite", module.nonfinite_count},
                         {"max_abs", module.max_abs},
                         {"max_rel", module.max_rel},
                         {"worst", json_text(module.worst)},
                         {"values_compared", module.value_count}};
  if (module.max_ulp_distance) json["max_ulp_distance"] = *module.max_ulp_distance;
  return json;
}

void add_modules(nlohmann::json& document, const optim::DiffSummary& summary, size_t limit) {
  document["modules"] = {{"compared", summary.module_count},
                         {"different_count", summary.modules.size()},
                         {"different", nlohmann::json::array()}};
  for (const optim::ModuleDifference& module : summary.modules) {
    nlohmann::json& list = document["modules"]["different"];
    if (list.size() < limit) list.push_back(to_json(module));
  }
}

struct Sides {
  const ckpt::Checkpoint &a, &b;
  const char* names;
};

void print_as_json(Console& console, const DiffOptions& options, const Sides& sides,
                   const optim::Compared& compared) {
  nlohmann::json document = to_json(compared.differences);
  document.update({{"a", to_json(sides.a)}, {"b", to_json(sides.b)}, {"names", sides.names}});
  if (!options.filter.is_everything()) document["selection"] = json_text(options.filter.text());
  if (options.summary) {
    add_modules(document, summarize(compared), options.limit);
  } else {
    add_lists(document, compared.differences, options.limit);
  }
  print_json(console, document);
}

void print_as_text(Console& console, const DiffOptions& options, const optim::Compared& compared) {
  if (console.options().quiet) return;
  if (options.summary) {
    print_summary(console, compared.differences, summarize(compared), options.limit);
  } else {
    print_differences(console, compared.differences, options.limit);
  }
  if (!options.filter.is_everything()) {
    console.out() << "; of what is selected by " << options.filter.text();
  }
  console.out() << '\n';
}

int run(const DiffOptions& options, Console& console) {
  std::optional<ProgressLine> line(std::in_place, console, "comparing");
  const ckpt::Checkpoint a = optim::open_side(options.a, options.limits);
  const ckpt::Checkpoint b = optim::open_side(options.b, options.limits);
  optim::NamedPair named = optim::names_in_common(a, b);
  for (const std::string& warning : named.warnings) console.warn(warning);
  select({&named.a, &named.b}, options.filter, console);
  ckpt::DiffOptions diff_options = options.diff;
  diff_options.execution = make_execute_options(console, *line);
  ckpt::Differences differences = diff({named.a, a}, {named.b, b}, diff_options);
  line.reset();
  const DiffSort default_sort = console.options().json ? DiffSort::Key : DiffSort::Difference;
  const DiffSort sort = options.sort == DiffSort::Default ? default_sort : options.sort;
  if (sort == DiffSort::Difference) optim::sort_worst_first(differences.tensors);
  const optim::Compared compared{differences, named.a, named.b, options.diff.keys_only};
  if (console.options().json) {
    print_as_json(console, options, {a, b, named.names}, compared);
  } else {
    print_as_text(console, options, compared);
  }
  return differences.none() ? 0 : 1;
}

}  // namespace

Command make_diff_command() {
  return make_command<DiffOptions>(
      {.name = "diff",
       .description = "Compares two checkpoints across formats and data-parallel sizes.",
       .examples = {"ckpt-inspect diff ckpt_a/ ckpt_b/ --summary",
                    "ckpt-inspect diff model.pt dcp/ --atol 1e-6 --rtol 1e-5",
                    "ckpt-inspect diff old/ new/ --keys-only --json"},
       .quiet = "Nothing: the exit code says it",
       .exit_1 = "different",
       .has_progress = true},
      run);
}

}  // namespace tools::inspect
