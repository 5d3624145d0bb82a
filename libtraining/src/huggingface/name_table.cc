#include "huggingface/name_table.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <ckpt/named_file.h>
#include <ckpt/printed.h>

#include "model/expression.h"
#include "state/words.h"

namespace optim {

extern const std::string_view kBuiltInNameTables;  // an object of all tables, put in by CMake

namespace {

using nlohmann::json;
using Texts = std::map<std::string, std::string>;

constexpr uint64_t kFileBytesMax = 4 << 20;
constexpr int kLevelsMax = 32;
constexpr const char* kHint = "docs/schema/input/name_table.json describes a table";

const json& built_in() {
  static const json tables = json::parse(kBuiltInNameTables);
  return tables;
}

// One table, field by field; what is left over is unknown.
class TableReader {
 public:
  explicit TableReader(std::string name) : name_(std::move(name)) {}

  NameTable read(const json& whole) const {
    require_fields(whole, {"schema_version", "base", "architecture", "model_type", "let",
                           "requires", "auto", "config", "args", "tensors", "further_layers"});
    NameTable table{name_,
                    text(whole, "architecture"),
                    text(whole, "model_type"),
                    texts(whole, "let"),
                    texts(whole, "requires"),
                    texts(whole, "auto"),
                    texts(whole, "config")};
    const auto rows = whole.find("tensors");
    if (rows == whole.end() || !rows->is_object()) refuse("tensors", "is not an object");
    for (const auto& [target, row] : rows->items()) table.tensors.push_back(read_row(target, row));
    table.args = texts(whole, "args");
    if (table.architecture.empty()) refuse("architecture", "is missing");
    if (const auto further = whole.find("further_layers"); further != whole.end()) {
      table.further = read_further(*further);
    }
    return table;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const {
    throw Error(ErrorCode::Corrupt, {.file = name_, .key = key}, problem, kHint);
  }

  void require_fields(const json& object, const std::set<std::string>& known) const {
    if (!object.is_object()) refuse("", "is not an object");
    for (const auto& [field, value] : object.items()) {
      if (!known.contains(field)) refuse(field, "is not a field that is known");
    }
  }

 private:
  TensorRow read_row(const std::string& target, const json& row) const {
    require_fields(row, {"from", "when", "view", "as", "slice", "rows", "add", "parts"});
    TensorRow made{target, text(row, "when"), text(row, "add")};
    if (made.when.empty()) made.when = "True";
    const auto parts = row.find("parts");
    if (parts != row.end() && (!parts->is_array() || parts->empty())) {
      refuse(target, "'parts' is not a list of objects");
    }
    for (const json& part : parts != row.end() ? *parts : json::array({json::object()})) {
      require_fields(part, {"from", "view", "as", "slice", "rows"});
      json whole = row;  // what all parts share
      whole.merge_patch(part);
      made.parts.push_back(read_part(target, whole));
    }
    return made;
  }
  RowPart read_part(const std::string& target, const json& part) const {
    RowPart made{texts_of(target, part.value("from", json())), text(part, "view"), text(part, "as"),
                 texts(part, "slice"), text(part, "rows")};
    if (made.as.empty()) made.as = made.view;
    if (made.from.empty() || made.view.empty()) refuse(target, "lacks 'from' or 'view'");
    return made;
  }
  FurtherLayers read_further(const json& layers) const {
    require_fields(layers, {"count", "names"});
    FurtherLayers made{text(layers, "count")};
    const json names = layers.value("names", json::object());
    for (const auto& [name, others] : names.items()) made.names[name] = texts_of(name, others);
    if (made.count.empty()) refuse("further_layers", "lacks 'count'");
    return made;
  }
  std::vector<std::string> texts_of(const std::string& key, const json& value) const {
    std::vector<std::string> made;
    for (const json& each : value.is_array() ? value : json::array({value})) {
      if (!each.is_string()) refuse(key, "has neither a text nor a list of texts");
      made.push_back(each);
    }
    return made;
  }
  std::string text(const json& object, const char* field) const {
    const auto found = object.find(field);
    if (found == object.end()) return {};
    if (!found->is_string()) refuse(field, "is not a text");
    return *found;
  }
  Texts texts(const json& object, const char* field) const {
    Texts made;
    const auto found = object.find(field);
    if (found == object.end()) return made;
    if (!found->is_object()) refuse(field, "is not an object");
    for (const auto& [key, value] : found->items()) made[key] = text(*found, key.c_str());
    return made;
  }

  std::string name_;
};

// A table with what it is based on: an object changes single fields of it, null takes one away.
json with_bases(const json& table, const TableReader& reader, int depth = 0) {
  if (!table.is_object()) reader.refuse("", "is not a JSON object");
  if (table.value("schema_version", json()) != 1) reader.refuse("schema_version", "is not 1");
  if (!table.contains("base")) return table;
  const json& base = table["base"];
  if (!base.is_string() || !built_in().contains(base.get<std::string>()) || depth > kLevelsMax) {
    reader.refuse("base", "names no table of this program");
  }
  json whole = with_bases(built_in()[base.get<std::string>()], reader, depth + 1);
  whole.merge_patch(table);
  return whole;
}

}  // namespace

std::vector<std::string> known_tables() {
  std::vector<std::string> names;
  for (const auto& [name, table] : built_in().items()) {
    if (table.contains("architecture")) names.push_back(name);
  }
  return names;
}

NameTable read_table(const json& table, const std::string& name) {
  const TableReader reader(name);
  return reader.read(with_bases(table, reader));
}

NameTable find_table(const std::string& name) {
  const bool is_file = name.find_first_of("./") != name.npos;
  if (is_file) {
    return read_table(json::parse(ckpt::read_named_file(name, kFileBytesMax), nullptr, false),
                      name);
  }
  const std::vector<std::string> known = known_tables();
  if (std::ranges::find(known, name) == known.end()) {
    throw Error(ErrorCode::Unsupported, {},
                "--names " + ckpt::escaped(name) + " is not an architecture that is known (" +
                    ckpt::joined(known) + ")",
                "--names FILE takes a table of your own: docs/huggingface.md");
  }
  return read_table(built_in()[name], name);
}

json NameScope::look_up(const std::string& name, std::optional<uint32_t> layer, int depth) const {
  if (name == "layer" && layer) return int64_t{*layer};
  if (const auto given = given_.find(name); given != given_.end()) return *given;
  if (const auto row = table_.let.find(name); row != table_.let.end()) {
    if (depth > kLevelsMax) {
      throw Error(ErrorCode::Corrupt, {.file = table_.name, .key = "let/" + name},
                  "leads back to itself");
    }
    return value_at(row->second, layer, depth + 1);
  }
  return asked_[name] = args_.value(name, json());
}

json NameScope::value_at(const std::string& text, std::optional<uint32_t> layer, int depth) const {
  return evaluate(text, [&](const std::string& name) { return look_up(name, layer, depth); });
}

json NameScope::value(const std::string& text, std::optional<uint32_t> layer) const {
  return ckpt::within(table_.name, {}, [&] { return value_at(text, layer, 0); });
}

uint64_t NameScope::size(const std::string& text) const {
  if (const auto known = sizes_.find(text); known != sizes_.end()) return known->second;
  const json number = value(text);
  if (!number.is_number_integer() || number.get<int64_t>() < 0) {
    throw Error(ErrorCode::Unsupported, {.file = table_.name, .key = text},
                "is not a size by args: " + arguments_of(text));
  }
  return sizes_[text] = number.get<uint64_t>();
}

std::string NameScope::arguments_of(const std::string& text) const {
  asked_.clear();
  value(text);
  return ckpt::joined(asked_, ", ", [](const auto& argument) {
    return ckpt::escaped(argument.first) + " = " + ckpt::escaped(argument.second.dump());
  });
}

}  // namespace optim
