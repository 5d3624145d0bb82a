// ckpt-inspect diff: what two checkpoints do not have in common. Exit code 1 if they differ.
#include <optional>
#include <ostream>

#include <ckpt/diff.h>
#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>

#include "inspect/commands.h"
#include "inspect/listing.h"
#include "inspect/names.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using ckpt::DifferenceKind;

struct DiffOptions {
  std::string a, b;
  ckpt::DiffOptions diff;
  ckpt::Limits limits;

  void declare(CLI::App& app) {
    app.add_option("A", a, "A checkpoint, as for `ckpt-inspect PATH`")
        ->required()
        ->option_text(" ");
    app.add_option("B", b, "Another one, of any format")->required()->option_text(" ");
    app.add_option("--atol", diff.atol, "Equal if |a - b| <= atol + rtol * |b|")
        ->check(kTolerance)
        ->option_text("X");
    app.add_option("--rtol", diff.rtol, "Default of both: 0, bit for bit")
        ->check(kTolerance)
        ->option_text("Y");
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
  if (value.max_ulp) text += ", max ULP " + short_number_text(*value.max_ulp);
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
  const std::string object_name = qualified_key(object.file, object.key);
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

void print_differences(Console& console, const ckpt::Differences& differences) {
  if (console.options().quiet) return;
  Table table({{}, {.can_shorten = true}, {.can_shorten = true}});
  for (const ckpt::TensorDifference& tensor : differences.tensors) {
    table.add_row({kind_cell(tensor.kind),
                   {qualified_key(tensor.file, tensor.key), Paint::Bold},
                   {detail_of(tensor)}});
  }
  for (const ckpt::ObjectDifference& object : differences.objects) add_object(table, object);
  table.print(console);
  const std::string tensors = count_text(differences.tensor_count, "tensor");
  const std::string objects = count_text(differences.object_count, "object");
  if (differences.none()) {
    console.out() << console.paint(Paint::Green, "equal") << ": " << tensors << ", " << objects
                  << '\n';
  } else {
    console.out() << console.paint(Paint::Red, "different") << ": " << differences.tensors.size()
                  << " of " << tensors << ", " << differences.objects.size() << " of " << objects
                  << '\n';
  }
}

nlohmann::json to_json(const ckpt::ValueDifference& value) {
  nlohmann::json json = {{"elements", value.element_count},  {"different", value.different_count},
                         {"max_abs", value.max_abs},         {"max_rel", value.max_rel},
                         {"first_index", value.first_index}, {"first_a", value.first_a},
                         {"first_b", value.first_b}};
  if (value.max_ulp) json["max_ulp"] = *value.max_ulp;
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
  return {{"path", json_text(checkpoint.folder().string())},
          {"format", name(checkpoint.catalog().format)}};
}

nlohmann::json to_json(const ckpt::Differences& differences) {
  nlohmann::json document = json_document();
  document["equal"] = differences.none();
  document["tensors"] = {{"compared", differences.tensor_count},
                         {"different", nlohmann::json::array()}};
  document["objects"] = {{"compared", differences.object_count},
                         {"different", nlohmann::json::array()}};
  for (const auto& tensor : differences.tensors) {
    document["tensors"]["different"].push_back(to_json(tensor));
  }
  for (const auto& object : differences.objects) {
    document["objects"]["different"].push_back(to_json(object));
  }
  return document;
}

int run(const DiffOptions& options, Console& console) {
  std::optional<ProgressLine> line(std::in_place, console, "comparing");
  const ckpt::Checkpoint a = open_side(options.a, options.limits);
  const ckpt::Checkpoint b = open_side(options.b, options.limits);
  const NamedPair named = names_in_common(a, b, console);
  ckpt::DiffOptions diff_options = options.diff;
  diff_options.execution = make_execute_options(console, *line);
  const ckpt::Differences differences = diff({named.a, a}, {named.b, b}, diff_options);
  line.reset();
  if (console.options().json) {
    nlohmann::json document = to_json(differences);
    document.update({{"a", to_json(a)}, {"b", to_json(b)}, {"names", named.names}});
    print_json(console, document);
  } else {
    print_differences(console, differences);
  }
  return differences.none() ? 0 : 1;
}

}  // namespace

Command make_diff_command() {
  return make_command<DiffOptions>({"diff",
                                    "Compares two checkpoints across formats and data-parallel "
                                    "sizes; exit code 1 if they differ "
                                    "(--quiet: nothing else).",
                                    {"ckpt-inspect diff ckpt_a/ ckpt_b/",
                                     "ckpt-inspect diff model.pt dcp/ --atol 1e-6 --rtol 1e-5",
                                     "ckpt-inspect diff old/ new/ --keys-only --json"}},
                                   run);
}

}  // namespace tools::inspect
