#include "model/model_rules.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <set>
#include <utility>

#include <ckpt/error.h>
#include <nlohmann/json.hpp>

#include "model/expression.h"
#include "model/stage_names.h"

namespace optim {

extern const std::string_view kBuiltInModelRules;  // model_rules.json, put in by CMake

namespace {

using nlohmann::json;

constexpr std::string_view kExpertMark = "{expert}";
constexpr std::array<std::pair<std::string_view, ModelPart>, 5> kParts = {
    {{"embedding", ModelPart::Embedding},
     {"layer", ModelPart::Layer},
     {"final", ModelPart::Final},
     {"mtp", ModelPart::Mtp},
     {"output", ModelPart::Output}}};
// In a layer of multi-token prediction its own layer, or of a hybrid model its own layers, come
// before the last norm.
constexpr uint32_t kMtpModelBlock = 1u << 20, kMtpFinalBlock = 1u << 31;
constexpr uint32_t kBlocksOfLayerMax = 1u << 12, kInnerLayersMax = 1u << 18;
using SplitWord = std::pair<std::string_view, SplitKind>;
constexpr std::array<SplitWord, 6> kSplits = {
    {{"", SplitKind::Replicated},  // where the field is absent
     {"replicated", SplitKind::Replicated},
     {"rows", SplitKind::Rows},
     {"columns", SplitKind::Columns},
     {"gated_rows", SplitKind::GatedRows},
     {"segments", SplitKind::Segments}}};

// One row, read field by field; what is left over is unknown.
class RowReader {
 public:
  RowReader(const json& row, std::string where, std::string_view source)
      : row_(row), where_(std::move(where)), source_(source) {
    if (!row.is_object()) refuse("is not an object");
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {std::string(source_), std::nullopt, where_},
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
    if (written.empty()) return written;
    try {
      evaluate(written, [](const std::string&) { return 1; });
    } catch (const ckpt::Error& error) {
      if (error.code() == ckpt::ErrorCode::Corrupt) refuse("'" + written + "' " + error.problem());
    }
    return written;
  }
  std::vector<json> list(const char* field) {
    return take(field, [&](const json& value) {
      if (!value.is_array()) refuse(std::string("'") + field + "' is not a list");
      return value.get<std::vector<json>>();
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
      if (!taken_.contains(field)) refuse("'" + field + "' is not a field of a row");
    }
  }

 private:
  template <class Read>
  auto take(const char* field, const Read& read) -> decltype(read(json())) {
    taken_.insert(field);
    const auto found = row_.find(field);
    return found == row_.end() ? decltype(read(json())){} : read(*found);
  }

  const json& row_;
  std::string where_;
  std::string_view source_;
  std::set<std::string> taken_;
};

std::vector<RowSegment> read_segments(RowReader& of_row, const std::string& where,
                                      std::string_view source) {
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

ModelRule read_row(const json& row, size_t number, std::string_view source) {
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

// What the rules of one expert have in common, where each expert's tensors follow one another.
std::string_view expert_prefix(const ModelRule& rule) {
  const size_t found = rule.name.find(kExpertMark);
  if (found == rule.name.npos) return {};
  const bool is_module = found + kExpertMark.size() < rule.name.size();
  return std::string_view(rule.name).substr(0, is_module ? found : rule.name.rfind('.') + 1);
}

// What args do not give, as where they lack one, is not known.
std::optional<uint64_t> count_of(const std::string& expression, const Lookup& lookup) {
  try {
    const json value = evaluate(expression, lookup);
    if (value.is_number_integer() && value >= 0) return value.get<uint64_t>();
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
  }
  return std::nullopt;
}

std::optional<NameInLayer> split_number(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view after = name.substr(prefix.size());
  uint32_t layer = 0;
  const auto [end, error] = std::from_chars(after.data(), after.data() + after.size(), layer);
  if (error != std::errc() || end == after.data() + after.size() || *end != '.') {
    return std::nullopt;
  }
  return NameInLayer{layer, after.substr(static_cast<size_t>(end - after.data()) + 1)};
}

}  // namespace

ModelRules::ModelRules(std::vector<ModelRule> rows) : rows_(std::move(rows)) {
  uint32_t block = 0;
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    const std::string_view prefix = expert_prefix(rows_[row]);
    const bool joins = row > 0 && !prefix.empty() && prefix == expert_prefix(rows_[row - 1]);
    block_.push_back(joins ? block : ++block);
    rows_by_name_.emplace(rows_[row].name, row);
    layers_have_vocabulary_ |= rows_[row].part == ModelPart::Layer && rows_[row].vocabulary;
    for (const RowSegment& segment : rows_[row].segments) segment_names_.insert(segment.name);
    for (const std::string& key : {rows_[row].key, rows_[row].local_key}) {
      if (!key.empty()) rows_by_key_.emplace(key, row);
    }
  }
}

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
  std::vector<ModelRule> rows;
  std::set<std::pair<ModelPart, std::string>> seen;
  for (const json& row : *rules) {
    rows.push_back(read_row(row, rows.size(), source));
    if (seen.emplace(rows.back().part, rows.back().name).second) continue;
    refuse("has two rows named '" + rows.back().name + "'");
  }
  return ModelRules(std::move(rows));
}

ModelRules ModelRules::with(const ModelRules& more) const {
  std::vector<ModelRule> rows = rows_;
  for (const ModelRule& row : more.rows_) {
    const uint32_t* const known = row_named(row.part, row.name);
    if (known == nullptr) {
      rows.push_back(row);
    } else {
      rows[*known] = row;
    }
  }
  return ModelRules(std::move(rows));
}

ModelRules ModelRules::of_args(const ckpt::Value& args) const {
  const Lookup lookup = [&](const std::string& name) {
    const auto value = args.find(name);
    return value ? json_of(*value) : json();
  };
  std::vector<ModelRule> rows = rows_;
  for (ModelRule& row : rows) {
    if (!row.when.empty()) row.has_key = is_truthy(evaluate(row.when, lookup));
    for (RowSegment& segment : row.segments) {
      segment.count = count_of(segment.rows, lookup);
      if (!segment.parts.empty()) segment.part_count = count_of(segment.parts, lookup);
    }
  }
  return ModelRules(std::move(rows));
}

std::string_view name(SplitKind split) {
  return std::ranges::find(kSplits.rbegin(), kSplits.rend(), split, &SplitWord::second)->first;
}

bool is_of_grouped_experts(const ModelRule& rule) {
  return rule.name.find(".experts.linear_fc") != rule.name.npos;
}

bool is_of_experts(const ModelRule& rule) {
  return rule.name.find(kExpertMark) != rule.name.npos || is_of_grouped_experts(rule);
}

const ModelRule* ModelRules::find_by_key(std::string_view key, KeyFlavor flavor) const {
  const auto [begin, end] = rows_by_key_.equal_range(key);
  for (auto row = begin; row != end; ++row) {
    const ModelRule& rule = rows_[row->second];
    if (!rule.has_key || (rule.key != key && !flavor.local)) continue;
    if (is_of_experts(rule) && is_of_grouped_experts(rule) != flavor.grouped) continue;
    return &rule;
  }
  return nullptr;
}

ModelRules::SegmentOfRule ModelRules::find_segment(std::string_view key, KeyFlavor flavor) const {
  const size_t dot = key.rfind('.');
  if (dot == key.npos) return {};
  const std::string_view whole = key.substr(0, dot);
  const ModelRule* rule = find_by_key(whole, flavor);
  if (rule == nullptr) {
    const uint32_t* const row = row_named(ModelPart::Layer, whole);
    if (row == nullptr) return {};
    rule = &rows_[*row];
  }
  const auto segment = std::ranges::find(rule->segments, key.substr(dot + 1), &RowSegment::name);
  if (segment == rule->segments.end()) return {};
  return {rule, static_cast<size_t>(segment - rule->segments.begin()), whole};
}

const uint32_t* ModelRules::row_named(ModelPart part, std::string_view pattern) const {
  const auto [begin, end] = rows_by_name_.equal_range(pattern);
  const auto found =
      std::find_if(begin, end, [&](const auto& row) { return rows_[row.second].part == part; });
  return found == end ? nullptr : &found->second;
}

std::optional<RuledName> ModelRules::find_in_layer(const NameInLayer& name) const {
  ModelPlace place = {.part = static_cast<uint32_t>(ModelPart::Layer), .layer = name.layer};
  const uint32_t* row = nullptr;
  if (const auto expert = expert_in(name.rest)) {
    place.expert = expert->number;
    std::string pattern(name.rest);
    pattern.replace(expert->begin, expert->end - expert->begin, kExpertMark);
    row = row_named(ModelPart::Layer, pattern);
  } else {
    row = row_named(ModelPart::Layer, name.rest);
  }
  if (row == nullptr) return std::nullopt;
  place.block = block_[*row];
  place.row = *row;
  return RuledName{&rows_[*row], place};
}

std::optional<RuledName> ModelRules::find_in_mtp(const NameInLayer& name) const {
  constexpr auto kPart = static_cast<uint32_t>(ModelPart::Mtp);
  if (name.rest.starts_with(kMtpModelLayer)) {
    const std::string_view rest = name.rest.substr(kMtpModelLayer.size());
    const auto inner = split_inner_layer(rest);
    auto found = find_in_layer({name.layer, inner ? inner->rest : rest});
    if (!found || (inner && inner->layer >= kInnerLayersMax)) return std::nullopt;
    found->place.part = kPart;
    found->place.block += kMtpModelBlock + (inner ? inner->layer : 0) * kBlocksOfLayerMax;
    return found;
  }
  const uint32_t* const row = row_named(ModelPart::Mtp, name.rest);
  if (row == nullptr) return std::nullopt;
  const bool is_last = name.rest.starts_with("final_");
  return RuledName{&rows_[*row],
                   {.part = kPart,
                    .layer = name.layer,
                    .block = block_[*row] + (is_last ? kMtpFinalBlock : 0),
                    .row = *row}};
}

std::optional<RuledName> ModelRules::find(std::string_view name) const {
  if (const auto in_layer = split_layer(name)) return find_in_layer(*in_layer);
  if (const auto in_mtp = split_mtp_layer(name)) return find_in_mtp(*in_mtp);
  for (const ModelPart part : {ModelPart::Embedding, ModelPart::Final, ModelPart::Output}) {
    const uint32_t* const row = row_named(part, name);
    if (row == nullptr) continue;
    return RuledName{&rows_[*row],
                     {.part = static_cast<uint32_t>(part), .block = block_[*row], .row = *row}};
  }
  return std::nullopt;
}

std::string with_expert(std::string_view rule_name, uint32_t expert) {
  std::string name(rule_name);
  const size_t place = name.find(kExpertMark);
  if (place == name.npos) return name;
  return name.replace(place, kExpertMark.size(), std::to_string(expert));
}

std::string join_layer(uint32_t layer, std::string_view rest) {
  std::string name;
  name.reserve(kLayersPrefix.size() + std::numeric_limits<uint32_t>::digits10 + 2 + rest.size());
  name.append(kLayersPrefix);
  return name.append(std::to_string(layer)).append(1, '.').append(rest);
}

std::optional<NameInLayer> split_layer(std::string_view name) {
  return split_number(name, kLayersPrefix);
}

std::optional<NameInLayer> split_mtp_layer(std::string_view name) {
  return split_number(name, kMtpLayersPrefix);
}

std::optional<NameInLayer> split_inner_layer(std::string_view name) {
  return split_number(name, "layers.");
}

std::optional<Split> split_of(const ModelRule& rule, const ckpt::Extents& shape, CutBy cut) {
  if (rule.split == SplitKind::Replicated) return std::nullopt;
  const size_t dim = rule.split == SplitKind::Columns ? 1 : 0;
  if (dim >= shape.size()) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = rule.name},
                      "has " + std::to_string(shape.size()) +
                          " dimensions, but is split along dimension " + std::to_string(dim));
  }
  if (rule.split == SplitKind::Segments) {
    Split split{dim, {}};
    for (const RowSegment& segment : rule.segments) {
      split.sections.push_back(segment.count.value() / cut.ranks);
    }
    return split;
  }
  const bool halves = cut.is_gated && rule.split == SplitKind::GatedRows;
  return halves ? two_halves(dim, shape[dim]) : one_section(dim, shape[dim]);
}

bool segments_fit(const ModelRule& rule, const ckpt::Extents& shape, uint32_t ranks) {
  if (rule.segments.empty()) return true;
  uint64_t left = shape.empty() ? 0 : shape[0];
  for (const RowSegment& segment : rule.segments) {
    const uint64_t count = segment.count.value_or(0);
    if (count == 0 || count % ranks != 0 || count / ranks > left) return false;
    left -= count / ranks;
  }
  return left == 0;
}

const RowSegment* find_uneven_segment(const ModelRule& rule, uint32_t ranks) {
  const auto found = std::ranges::find_if(rule.segments, [ranks](const RowSegment& segment) {
    return segment.part_count && *segment.part_count % ranks != 0;
  });
  return found == rule.segments.end() ? nullptr : &*found;
}

std::string segments_in_words(const ModelRule& rule) {
  std::string words;
  for (const RowSegment& segment : rule.segments) {
    words += (words.empty() ? "" : ", ") + segment.name + " " +
             (segment.count ? std::to_string(*segment.count) : "?");
  }
  return words;
}

}  // namespace optim
