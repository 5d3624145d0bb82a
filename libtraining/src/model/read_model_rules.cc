// Rows of model rules out of a file, and the values that the args of a run give them.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <ckpt/error.h>
#include <nlohmann/json.hpp>

#include "model/expression.h"
#include "model/model_rules.h"

namespace optim {

extern const std::string_view kBuiltInModelRules;  // model_rules.json, put in by CMake

namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, ModelPart>, 6> kParts = {
    {{"embedding", ModelPart::Embedding},
     {"layer", ModelPart::Layer},
     {"final", ModelPart::Final},
     {"mtp", ModelPart::Mtp},
     {"output", ModelPart::Output},
     {"vision", ModelPart::Vision}}};
using SplitWord = std::pair<std::string_view, SplitKind>;
constexpr std::array<SplitWord, 6> kSplits = {
    {{"", SplitKind::Replicated},  // where the field is absent
     {"replicated", SplitKind::Replicated},
     {"rows", SplitKind::Rows},
     {"columns", SplitKind::Columns},
     {"gated_rows", SplitKind::GatedRows},
     {"segments", SplitKind::Segments}}};

// A file of rows while it is read. Many segments have one expression: each is looked at once.
struct TableSource {
  std::string_view name;
  std::set<std::string, std::less<>> expressions = {};  // whose words are right
};

// One row, read field by field; what is left over is unknown.
class RowReader {
 public:
  RowReader(const json& row, std::string where, TableSource& source)
      : row_(row), where_(std::move(where)), source_(source) {
    if (!row.is_object()) refuse("is not an object");
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {std::string(source_.name), std::nullopt, where_},
                      problem, "docs/schema/input/model_rules.json describes a row");
  }
  std::string text(const char* field) {
    return take(field, [&](const json& value) {
      if (!value.is_string()) refuse(std::string("'") + field + "' is not a text");
      return value.get<std::string>();
    });
  }
  bool flag(const char* field) {
    return take(field, [&](const json& value) {
      if (!value.is_boolean()) refuse(std::string("'") + field + "' is neither true nor false");
      return value.get<bool>();
    });
  }
  // One that a table for expressions of args can have: whether its words are right.
  std::string expression(const char* field) {
    std::string written = text(field);
    if (written.empty() || !source_.expressions.insert(written).second) return written;
    try {
      evaluate(written, [](const std::string&) { return 1; });
    } catch (const ckpt::Error& error) {
      if (error.code() == ckpt::ErrorCode::Corrupt) refuse("'" + written + "' " + error.problem());
    }
    return written;
  }
  std::span<const json> list(const char* field) {
    return take(field, [&](const json& value) {
      if (!value.is_array()) refuse(std::string("'") + field + "' is not a list");
      return std::span<const json>(value.get_ref<const json::array_t&>());
    });
  }
  template <class T, size_t kCount>
  T one_of(const char* field, const std::array<std::pair<std::string_view, T>, kCount>& words) {
    const std::string word = text(field);
    for (const auto& [known, value] : words) {
      if (word == known) return value;
    }
    refuse("'" + word + "' is not a valid '" + field + "'");
  }
  void finish() const {
    for (const auto& [field, value] : row_.items()) {
      if (std::ranges::find(taken_, field) != taken_.end()) continue;
      refuse("'" + field + "' is not a field of a row");
    }
  }

 private:
  template <class Read>
  auto take(const char* field, const Read& read) -> decltype(read(json())) {
    const auto found = row_.find(field);
    if (found != row_.end()) taken_.push_back(field);
    return found == row_.end() ? decltype(read(json())){} : read(*found);
  }

  const json& row_;
  std::string where_;
  TableSource& source_;
  std::vector<std::string_view> taken_;
};

std::vector<RowSegment> read_segments(RowReader& of_row, const std::string& where,
                                      TableSource& source) {
  std::vector<RowSegment> segments;
  for (const json& each : of_row.list("segments")) {
    RowReader reader(each, where + "/segments/" + std::to_string(segments.size()), source);
    RowSegment segment{reader.text("name"), reader.expression("rows"), reader.expression("parts")};
    reader.finish();
    const bool is_known = std::ranges::count(segments, segment.name, &RowSegment::name) > 0;
    if (segment.name.empty() || segment.rows.empty() || is_known) {
      reader.refuse("needs a 'name' of its own and 'rows'");
    }
    if (segment.name.find('.') != std::string::npos) reader.refuse("'name' has a dot");
    segments.push_back(std::move(segment));
  }
  return segments;
}

ModelRule read_row(const json& row, size_t number, TableSource& source) {
  const std::string where = "rules/" + std::to_string(number);
  RowReader reader(row, where, source);
  ModelRule rule;
  rule.part = reader.one_of("part", kParts);
  rule.name = reader.text("name");
  rule.split = reader.one_of("split", kSplits);
  rule.vocabulary = reader.flag("vocabulary");
  rule.buffer = reader.flag("buffer");
  rule.unsharded = reader.flag("unsharded");
  rule.key = reader.text("key");
  rule.local_key = reader.text("local_key");
  rule.same_as = reader.text("same_as");
  rule.when = reader.expression("when");
  rule.segments = read_segments(reader, where, source);
  reader.finish();
  if (rule.name.empty()) reader.refuse("has no 'name'");
  if (rule.segments.empty() == (rule.split == SplitKind::Segments)) {
    reader.refuse("'segments' and 'split' do not go together");
  }
  if (rule.segments.size() == 1) reader.refuse("'segments' has one alone: its split is 'rows'");
  return rule;
}

// Values of expressions by the args of a run: asked for by every page, each is computed once.
class ValuesByArgs {
 public:
  explicit ValuesByArgs(const ckpt::Value& args) : args_(args) {}
  json value(const std::string& expression) {
    return evaluate(expression, [this](const std::string& name) { return argument(name); });
  }
  // What args do not give, as where they lack one, is not known.
  std::optional<uint64_t> count(const std::string& expression) {
    const auto [known, is_new] = counts_.try_emplace(expression);
    if (!is_new) return known->second;
    try {
      const json number = value(expression);
      if (number.is_number_integer() && number >= 0) known->second = number.get<uint64_t>();
    } catch (const ckpt::Error& error) {
      if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    }
    return known->second;
  }

 private:
  json argument(const std::string& name) {
    const auto [known, is_new] = arguments_.try_emplace(name);
    if (const auto found = is_new ? args_.find(name) : std::nullopt)
      known->second = json_of(*found);
    return known->second;
  }

  const ckpt::Value& args_;
  std::map<std::string, json> arguments_;
  std::map<std::string, std::optional<uint64_t>> counts_;
};

}  // namespace

const ModelRules& ModelRules::built_in() {
  static const ModelRules rules = parse(kBuiltInModelRules, "model_rules.json");
  return rules;
}

ModelRules ModelRules::parse(std::string_view text, std::string_view source) {
  const auto refuse = [&](const std::string& problem) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = std::string(source)}, problem,
                      "docs/schema/input/model_rules.json describes the file");
  };
  const json document = json::parse(text, nullptr, false);
  if (!document.is_object()) refuse("is not a JSON object");
  if (document.value("schema_version", json()) != 1) refuse("'schema_version' is not 1");
  const auto rules = document.find("rules");
  if (rules == document.end() || !rules->is_array()) refuse("'rules' is not a list");
  if (document.size() != 2) refuse("has other keys than 'schema_version' and 'rules'");
  TableSource table{source};
  std::vector<ModelRule> rows;
  std::set<std::pair<ModelPart, std::string>> seen;
  for (const json& row : *rules) {
    rows.push_back(read_row(row, rows.size(), table));
    if (seen.emplace(rows.back().part, rows.back().name).second) continue;
    refuse("has two rows named '" + rows.back().name + "'");
  }
  return ModelRules(std::move(rows));
}

ModelRules ModelRules::of_args(const ckpt::Value& args) const {
  ValuesByArgs values(args);
  std::vector<ModelRule> rows = rows_;
  for (ModelRule& row : rows) {
    if (!row.when.empty()) row.has_key = is_truthy(values.value(row.when));
    for (RowSegment& segment : row.segments) {
      segment.count = values.count(segment.rows);
      if (!segment.parts.empty()) segment.part_count = values.count(segment.parts);
    }
  }
  return ModelRules(std::move(rows));
}

std::string_view name(SplitKind split) {
  return std::ranges::find(kSplits.rbegin(), kSplits.rend(), split, &SplitWord::second)->first;
}

}  // namespace optim
