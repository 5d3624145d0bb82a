#include "model/model_rules.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/printed.h>

#include "model/tensor_names.h"

namespace optim {
namespace {

constexpr std::string_view kExpertMark = "{expert}";
// In a layer of multi-token prediction its own layer, or of a hybrid model its own layers, come
// before the last norm.
constexpr uint32_t kMtpModelBlock = 1u << 20, kMtpFinalBlock = 1u << 31;
constexpr uint32_t kBlocksOfLayerMax = 1u << 12, kInnerLayersMax = 1u << 18;
// Of a row's name what each name has as it stands.
std::string_view behind_expert(std::string_view row_name) {
  const size_t mark = row_name.find(kExpertMark);
  return mark == row_name.npos ? row_name : row_name.substr(mark + kExpertMark.size());
}

// What the rules of one expert have in common, where each expert's tensors follow one another.
std::string_view expert_prefix(const ModelRule& rule) {
  const size_t found = rule.name.find(kExpertMark);
  if (found == rule.name.npos) return {};
  const bool is_module = found + kExpertMark.size() < rule.name.size();
  return std::string_view(rule.name).substr(0, is_module ? found : rule.name.rfind('.') + 1);
}

std::optional<NameInLayer> split_number(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view after = name.substr(prefix.size());
  uint32_t layer = 0;
  const auto* const last = after.data() + after.size();
  const auto [end, error] = std::from_chars(after.data(), last, layer);
  if (error != std::errc() || end == last || *end != '.') return std::nullopt;
  return NameInLayer{layer, after.substr(static_cast<size_t>(end - after.data()) + 1), prefix};
}

// Where parts of a model stand in its order of registration.
enum class Order : uint32_t {
  Embedding,
  Encoder,
  BehindEncoder,
  Decoder,
  BehindDecoder,
  Mtp,
  Output,
  Vision,
  VisionLayers,
  BehindVision,
  Unknown,
};

// Of stacks beside the decoder it is known where those of T5, BERT and LLaVA stand.
Order order_of_stack(std::string_view stack) {
  if (stack == kLayersPrefix) return Order::Decoder;
  if (stack == "encoder.layers.") return Order::Encoder;
  return stack == kVisionStack ? Order::VisionLayers : Order::Unknown;
}

Order order_of(ModelPart part, std::string_view name) {
  switch (part) {
    case ModelPart::Embedding: return Order::Embedding;
    case ModelPart::Layer: return Order::Decoder;
    case ModelPart::Final:
      return name.starts_with("encoder.") ? Order::BehindEncoder : Order::BehindDecoder;
    case ModelPart::Mtp: return Order::Mtp;
    case ModelPart::Output: return Order::Output;
    case ModelPart::Vision:
      return name.starts_with("vision_model.") ? Order::Vision : Order::BehindVision;
  }
  return Order::Output;
}

struct PartAndName {
  std::string_view part;
  std::string name;
};

// Where nothing says whether it comes before the layers or behind them: PART.
PartAndName part_of(std::string_view whole) {
  const std::string_view name = without_submodel(whole);
  if (const auto in_mtp = split_mtp_layer(name)) return {"mtp", std::string(in_mtp->rest)};
  if (const auto in_stack = split_stack(name)) return {"layer", std::string(in_stack->rest)};
  if (name.starts_with("vision_")) return {"vision", std::string(name)};
  if (name.starts_with("embedding.")) return {"embedding", std::string(name)};
  if (name.starts_with("output_layer.")) return {"output", std::string(name)};
  return {"PART", std::string(name)};
}

std::string_view split_in_words(const TensorSharing& sharing) {
  if (!sharing.is_known) return "SPLIT";
  if (!sharing.split) return name(SplitKind::Replicated);
  if (sharing.split->dim != 0) return name(SplitKind::Columns);
  return name(sharing.split->sections.size() == 2 ? SplitKind::GatedRows : SplitKind::Rows);
}

std::string with_placeholder(std::string name) {
  if (const auto expert = expert_in(name)) {
    name.replace(expert->begin, expert->end - expert->begin, "{expert}");
  }
  return name;
}

std::string segments_of(const ModelRule& rule) {
  const auto text_of = [](const RowSegment& segment) {
    const std::string rows = segment.count ? std::to_string(*segment.count) : "ROWS";
    return "{\"name\": \"" + ckpt::escaped(segment.name) + "\", \"rows\": \"" + rows + "\"}";
  };
  return "segments\", \"segments\": [" + ckpt::joined(rule.segments, ", ", text_of) + "]";
}

}  // namespace

ModelRules::ModelRules(std::vector<ModelRule> rows) : rows_(std::move(rows)) {
  uint32_t block = 0;
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    const std::string_view prefix = expert_prefix(rows_[row]);
    const bool joins = row > 0 && !prefix.empty() && prefix == expert_prefix(rows_[row - 1]);
    block_.push_back(joins ? block : ++block);
    rows_by_name_.emplace(rows_[row].name, row);
    const std::string_view end = behind_expert(rows_[row].name);
    if (!rows_[row].segments.empty()) segmented_ends_.emplace_back(end);
    if (rows_[row].vocabulary) vocabulary_ends_.emplace_back(end);
    if (!rows_[row].same_as.empty()) ++rows_of_two_names_;
    for (const RowSegment& segment : rows_[row].segments) segment_names_.insert(segment.name);
    for (const std::string& key : {rows_[row].key, rows_[row].local_key}) {
      if (!key.empty()) rows_by_key_.emplace(key, row);
    }
  }
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

const ModelRule* ModelRules::find_at_ends(std::string_view name,
                                          const std::vector<std::string>& ends) const {
  const auto is_end = [&](const std::string& end) { return name.ends_with(end); };
  const auto found = std::ranges::any_of(ends, is_end) ? find(name) : std::nullopt;
  return found ? found->rule : nullptr;
}

const ModelRule* ModelRules::find_segmented(std::string_view name) const {
  const ModelRule* const rule = find_at_ends(name, segmented_ends_);
  return rule != nullptr && !rule->segments.empty() ? rule : nullptr;
}

bool ModelRules::is_vocabulary(std::string_view name) const {
  const ModelRule* const rule = find_at_ends(name, vocabulary_ends_);
  return rule != nullptr && rule->vocabulary;
}

const uint32_t* ModelRules::row_named(ModelPart part, std::string_view pattern) const {
  const auto [begin, end] = rows_by_name_.equal_range(pattern);
  const auto found =
      std::find_if(begin, end, [&](const auto& row) { return rows_[row.second].part == part; });
  return found == end ? nullptr : &found->second;
}

std::optional<RuledName> ModelRules::find_in_layer(const NameInLayer& name) const {
  ModelPlace place = {.part = static_cast<uint32_t>(Order::Decoder), .layer = name.layer};
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
  constexpr auto kPart = static_cast<uint32_t>(Order::Mtp);
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

std::optional<RuledName> ModelRules::find_in_stack(const NameInLayer& name) const {
  auto found = find_in_layer(name);
  if (!found) return std::nullopt;
  const Order order = order_of_stack(name.stack);
  found->place.part = static_cast<uint32_t>(order);
  found->has_known_place = order != Order::Unknown;
  return found;
}

ModelPlace place_without_rule(std::string_view name) {
  name = without_submodel(name);
  constexpr uint32_t kLast = ~uint32_t{0};
  if (name.starts_with("embedding.")) {
    return {.part = static_cast<uint32_t>(Order::Embedding), .block = kLast};
  }
  const auto in_stack = split_stack(name);
  if (!in_stack) return {.part = kLast, .block = kLast};
  return {.part = static_cast<uint32_t>(order_of_stack(in_stack->stack)),
          .layer = in_stack->layer,
          .block = kLast};
}

std::optional<RuledName> ModelRules::find(std::string_view name) const {
  name = without_submodel(name);
  if (const auto in_layer = split_layer(name)) return find_in_layer(*in_layer);
  if (const auto in_mtp = split_mtp_layer(name)) return find_in_mtp(*in_mtp);
  if (const auto in_stack = split_stack(name)) return find_in_stack(*in_stack);
  for (const ModelPart part :
       {ModelPart::Embedding, ModelPart::Final, ModelPart::Output, ModelPart::Vision}) {
    const uint32_t* const row = row_named(part, name);
    if (row == nullptr) continue;
    return RuledName{
        &rows_[*row],
        {.part = static_cast<uint32_t>(order_of(part, name)), .block = block_[*row], .row = *row}};
  }
  return std::nullopt;
}

std::string_view ModelRules::same_as(std::string_view name) const {
  if (rows_of_two_names_ == 0 || !stack_of(name).empty()) return {};
  const auto found = find(name);
  return found ? std::string_view(found->rule->same_as) : std::string_view();
}

std::string with_expert(std::string_view rule_name, uint32_t expert) {
  std::string name(rule_name);
  const size_t place = name.find(kExpertMark);
  if (place == name.npos) return name;
  return name.replace(place, kExpertMark.size(), std::to_string(expert));
}

std::string join_layer(uint32_t layer, std::string_view rest, std::string_view stack) {
  std::string name;
  name.reserve(stack.size() + std::numeric_limits<uint32_t>::digits10 + 2 + rest.size());
  name.append(stack);
  return name.append(std::to_string(layer)).append(1, '.').append(rest);
}

std::optional<NameInLayer> split_layer(std::string_view name) {
  return split_number(name, kLayersPrefix);
}

std::string_view stack_of(std::string_view name) {
  constexpr std::string_view kLayers = ".layers.";
  if (name.starts_with(kMtpLayersPrefix)) return {};
  for (size_t at = name.find(kLayers); at != name.npos; at = name.find(kLayers, at + 1)) {
    const std::string_view before = name.substr(0, at);
    const std::string_view last = before.substr(before.rfind('.') + 1);
    if (last == "decoder" || last == "encoder") return name.substr(0, at + kLayers.size());
  }
  return {};
}

std::optional<NameInLayer> split_stack(std::string_view name) {
  const std::string_view stack = stack_of(name);
  return stack.empty() ? std::nullopt : split_number(name, stack);
}

std::string_view without_submodel(std::string_view name) {
  if (name.starts_with(kLanguageModel)) name.remove_prefix(kLanguageModel.size());
  return name;
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
  return ckpt::joined(rule.segments, ", ", [](const RowSegment& segment) {
    return segment.name + " " + (segment.count ? std::to_string(*segment.count) : "?");
  });
}

std::string enough_row(std::string_view name, const TensorSharing& sharing,
                       const ModelRules& rules) {
  PartAndName row = part_of(name);
  const ModelRule* const segmented = rules.find_segmented(name);
  const std::string split =
      segmented ? segments_of(*segmented) : std::string(split_in_words(sharing)) + "\"";
  std::string text = "a row of --model-rules for it: {\"part\": \"" + std::string(row.part) +
                     "\", \"name\": \"" + ckpt::escaped(with_placeholder(std::move(row.name))) +
                     "\", \"split\": \"" + split + "}";
  if (row.part == "PART") text += "; PART is embedding, final (behind the layers) or output";
  if (split.starts_with("SPLIT")) {
    text += "; SPLIT is replicated, rows, columns or, of gate and up, gated_rows";
  }
  if (split.find("ROWS") != split.npos) text += "; ROWS are a segment's in the whole model";
  return text;
}

}  // namespace optim
