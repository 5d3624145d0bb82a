#include "format/torch_dist/dist_assembler.h"

#include <ckpt/limits.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace ckpt {
namespace {

using Tag = DistItem::Tag;

// The names of fields, interned first: their ids are their places in this list.
enum FieldName : uint32_t {
  kOffsets,
  kSizes,
  kFqn,
  kOffset,
  kIndex,
  kRelativePath,
  kLength,
  kTransformDescriptors,
  kProperties,
  kSize,
  kChunks,
  kStateDictMetadata,
  kPlannerData,
  kStorageData,
  kStorageMeta,
  kVersion,
};
constexpr std::string_view kFieldNames[] = {
    "offsets",      "sizes",         "fqn",          "offset",
    "index",        "relative_path", "length",       "transform_descriptors",
    "properties",   "size",          "chunks",       "state_dict_metadata",
    "planner_data", "storage_data",  "storage_meta", "version",
};

bool is_count(const DistItem& item) {
  return item.is(Tag::Int) && static_cast<int64_t>(item.number) >= 0;
}

bool is_number_or_none(const DistItem& item) { return item.is(Tag::Int) || item.is(Tag::None); }

// A plain tuple counts, too: Megatron-FSDP writes it.
bool is_size(const DistItem& item) { return item.is(Tag::Size) || item.is(Tag::Numbers); }

bool is_instance_of(const DistItem& item, DistClass what) {
  return item.is(Tag::Instance) && item.id == static_cast<uint32_t>(what);
}

}  // namespace

DistAssembler::DistAssembler() {
  for (const std::string_view name : kFieldNames) values_.texts.intern(name, is_utf8);
  empty_tuple_ = *values_.extents.intern({});
}

std::optional<DistItem> DistAssembler::tuple(std::span<const DistItem> elements) {
  if (elements.size() == 1 && elements[0].is(Tag::Numbers)) {
    return DistItem{Tag::Wrapped, elements[0].id};
  }
  if (elements.size() <= Limits().dims_max && std::ranges::all_of(elements, is_count)) {
    numbers_.clear();
    for (const DistItem& element : elements) numbers_.push_back(element.number);
    const auto id = values_.extents.intern(numbers_);
    return id ? std::optional(DistItem{Tag::Numbers, *id}) : std::nullopt;
  }
  std::vector<NodeId> nodes;
  for (const DistItem& element : elements) {
    const auto node = to_node(element);
    if (!node) return std::nullopt;
    nodes.push_back(*node);
  }
  return DistItem{Tag::Node, values_.tree.sequence(Kind::Tuple, nodes)};
}

std::optional<DistItem> DistAssembler::object(Construction construction, const DistItem& callable,
                                              const DistItem& args) {
  const DistClass known = values_.known_class(callable);
  if (known == DistClass::Size) {
    if (construction != Construction::Reduce || !args.is(Tag::Wrapped)) return std::nullopt;
    return DistItem{Tag::Size, args.id};
  }
  if (known != DistClass::Other) {
    const bool plain =
        construction == Construction::NewObj && args.is(Tag::Numbers) && args.id == empty_tuple_;
    if (!plain) return std::nullopt;
    return DistItem{Tag::Instance, static_cast<uint32_t>(known)};
  }
  const auto callable_node = to_node(callable), args_node = to_node(args);
  if (!callable_node || !args_node) return std::nullopt;
  if (values_.tree.value(*args_node).kind() != Kind::Tuple) return std::nullopt;
  return DistItem{Tag::Node, values_.tree.object(construction, *callable_node, *args_node)};
}

DistAssembler::Pairs DistAssembler::pairs_of(const DistItem& dict) const {
  if (!dict.is(Tag::Dict) || dict.id + 2 * dict.number > pairs_.size()) return {};
  return std::span(pairs_).subspan(dict.id, 2 * dict.number);
}

// The pairs of a dict that became something else; false where those of another dict follow.
bool DistAssembler::drop_pairs(const DistItem& dict) {
  if (!dict.is(Tag::Dict) || dict.number == 0) return true;
  if (dict.id + 2 * dict.number != pairs_.size()) return false;
  pairs_.resize(dict.id);
  return true;
}

std::optional<NodeId> DistAssembler::to_node(const DistItem& item) {
  return values_.to_node(item, pairs_of(item));
}

bool DistAssembler::make_storable(DistItem& item) {
  if (!item.is(Tag::Dict) && !(item.is(Tag::List) && item.number == 0)) return true;
  const auto node = to_node(item);
  if (!node || !drop_pairs(item)) return false;
  item = {Tag::Node, *node};
  return true;
}

// --- containers ---

bool DistAssembler::append(DistItem& list, std::span<const DistItem> elements) {
  if (!list.is(Tag::List)) return false;
  std::vector<DistEntries::Box>& boxes = collector_.next_entries().boxes;
  if (list.number == 0) list.id = static_cast<uint32_t>(boxes.size());
  if (list.id + list.number != boxes.size()) return false;
  for (const DistItem& element : elements) {
    if (!element.is(Tag::Chunk)) return false;
    boxes.push_back(
        {&values_.extents[element.id], &values_.extents[static_cast<uint32_t>(element.number)]});
  }
  list.number += elements.size();
  return true;
}

bool DistAssembler::set_items(DistItem& dict, std::span<DistItem> keys_and_values) {
  if (keys_and_values.size() % 2 != 0) return false;
  if (keys_and_values.empty()) {  // Python writes this after every multiple of 1000 pairs
    return dict.is(Tag::Dict) || dict.is(Tag::Entries) || dict.is(Tag::Places);
  }
  const DistItem& value = keys_and_values[1];
  if (value.is(Tag::Info)) return add_places(dict, keys_and_values);
  if (value.is(Tag::Tensor) || is_instance_of(value, DistClass::Bytes)) {
    return add_entries(dict, keys_and_values);
  }
  return dict.is(Tag::Dict) && store_pairs(dict, keys_and_values);
}

// A dict's pairs lie at the end of pairs_ while they are added: those of the values are taken off
// first, and of several the last lie last.
bool DistAssembler::store_pairs(DistItem& dict, std::span<DistItem> keys_and_values) {
  for (size_t i = keys_and_values.size(); i >= 2; i -= 2) {
    if (!keys_and_values[i - 2].is(Tag::Text) && !keys_and_values[i - 2].is(Tag::Int)) return false;
    if (!make_storable(keys_and_values[i - 1])) return false;
  }
  if (dict.number == 0) dict.id = static_cast<uint32_t>(pairs_.size());
  if (dict.id + 2 * dict.number != pairs_.size()) return false;
  pairs_.insert(pairs_.end(), keys_and_values.begin(), keys_and_values.end());
  dict.number += keys_and_values.size() / 2;
  return true;
}

bool DistAssembler::add_entries(DistItem& dict, std::span<const DistItem> keys_and_values) {
  const bool is_first = dict.is(Tag::Dict) && dict.number == 0 && keys_.empty();
  if (has_places_ || (!is_first && !dict.is(Tag::Entries))) return false;
  dict = {Tag::Entries};
  size_t named = 0;
  for (size_t i = 0; i < keys_and_values.size(); i += 2) {
    const DistItem& value = keys_and_values[i + 1];
    if (value.is(Tag::Tensor) && value.id != named++) return false;
    if (!add_entry(keys_and_values[i], value)) return false;
  }
  const bool are_named = named == unnamed_.size();
  unnamed_.clear();
  return are_named && collector_.end_entries();
}

bool DistAssembler::add_entry(const DistItem& key, const DistItem& value) {
  if (!key.is(Tag::Text)) return false;
  keys_.push_back(key.id);
  const bool is_tensor = value.is(Tag::Tensor) && value.id < unnamed_.size();
  if (!is_tensor && !is_instance_of(value, DistClass::Bytes)) return false;
  DistEntries::Entry& entry = collector_.next_entries().entries.emplace_back();
  if (is_tensor) entry = unnamed_[value.id];
  entry.key = key.id;
  entry.name = &values_.texts[key.id];
  return true;
}

bool DistAssembler::add_places(DistItem& dict, std::span<const DistItem> keys_and_values) {
  const bool is_first = dict.is(Tag::Dict) && dict.number == 0 && !has_places_;
  if (!is_first && !dict.is(Tag::Places)) return false;
  if (ranges_.size() != keys_and_values.size() / 2) return false;
  has_places_ = true;
  dict = {Tag::Places};
  for (size_t i = 0; i < keys_and_values.size(); i += 2) {
    const DistItem &index = keys_and_values[i], &info = keys_and_values[i + 1];
    if (info.number != i / 2 || !add_place(index, info)) return false;
  }
  ranges_.clear();
  return true;
}

bool DistAssembler::add_place(const DistItem& index, const DistItem& info) {
  if (!index.is(Tag::Index) || !info.is(Tag::Info)) return false;
  const auto file = file_of(info.id);
  if (!file) return false;
  const Extents* offsets =
      index.number == 0 ? nullptr : &values_.extents[static_cast<uint32_t>(index.number - 1)];
  return collector_.add_place({index.id, *file, offsets, ranges_[info.number]});
}

std::optional<uint32_t> DistAssembler::file_of(uint32_t path) {
  if (file_of_path_.size() <= path) file_of_path_.resize(values_.texts.size());
  uint32_t& file = file_of_path_[path];
  if (file == 0) {
    const std::string& name = values_.texts[path];
    if (!is_plain_file_name(name)) return std::nullopt;
    files_.push_back(name);
    file = static_cast<uint32_t>(files_.size());
  }
  return file - 1;
}

// --- known classes ---

std::span<const uint32_t> DistAssembler::names_of(DistClass known) {
  static constexpr uint32_t kChunkNames[] = {kOffsets, kSizes};
  static constexpr uint32_t kIndexNames[] = {kFqn, kOffset, kIndex};
  static constexpr uint32_t kInfoNames[] = {kRelativePath, kOffset, kLength, kTransformDescriptors};
  static constexpr uint32_t kTensorNames[] = {kProperties, kSize, kChunks};
  switch (known) {
    case DistClass::Chunk: return kChunkNames;
    case DistClass::Index: return kIndexNames;
    case DistClass::Info: return kInfoNames;
    case DistClass::Tensor: return kTensorNames;
    default: return {};
  }
}

std::optional<uint8_t> DistAssembler::place_of(DistClass known, const DistItem& name) {
  const auto names = names_of(known);
  const auto found = std::ranges::find(names, name.id);
  if (!name.is(Tag::Text) || found == names.end()) return std::nullopt;
  return static_cast<uint8_t>(found - names.begin());
}

// No name twice: which of its values counts is for the general reader.
std::optional<DistAssembler::Fields> DistAssembler::fields_of(DistClass known, Pairs pairs) {
  Fields fields;
  uint32_t seen = 0;
  for (size_t i = 0; i < pairs.size(); i += 2) {
    const auto place = place_of(known, pairs[i]);
    if (!place || (seen >> *place & 1) != 0) return std::nullopt;
    seen |= 1u << *place;
    fields[*place] = pairs[i + 1];
  }
  return fields;
}

bool DistAssembler::build(DistItem& object, const DistItem& state) {
  if (object.is(Tag::Node)) {
    const Value value = values_.tree.value(object.id);
    const auto node = to_node(state);
    if (!node || !value.is(Kind::Object) || value.state()) return false;
    values_.tree.set_state(object.id, *node);
    return drop_pairs(state);
  }
  if (!object.is(Tag::Instance)) return false;
  const auto known = static_cast<DistClass>(object.id);
  if (known == DistClass::Properties) return build_properties(object, state);
  if (known == DistClass::Metadata) return build_metadata(object, state);
  const auto pairs = pairs_of(state);
  if (!state.is(Tag::Dict) || pairs.size() != 2 * state.number) return false;
  const auto fields = fields_of(known, pairs);
  return fields && build_from(object, *fields) && drop_pairs(state);
}

bool DistAssembler::build_from(DistItem& object, const Fields& fields) {
  switch (static_cast<DistClass>(object.id)) {
    case DistClass::Chunk: return build_chunk(object, fields);
    case DistClass::Index: return build_index(object, fields);
    case DistClass::Info: return build_info(object, fields);
    case DistClass::Tensor: return build_tensor(object, fields);
    case DistClass::Bytes: return true;
    default: return false;
  }
}

bool DistAssembler::build_chunk(DistItem& object, const Fields& fields) {
  const auto& [offsets, sizes, a, b] = fields;
  if (!is_size(offsets) || !is_size(sizes)) return false;
  object = {Tag::Chunk, offsets.id, sizes.id};
  return true;
}

bool DistAssembler::build_index(DistItem& object, const Fields& fields) {
  const auto& [fqn, offset, index, a] = fields;
  const bool has_offset = is_size(offset);
  if (!fqn.is(Tag::Text) || !is_number_or_none(index)) return false;
  if (!has_offset && !offset.is(Tag::None)) return false;
  object = {Tag::Index, fqn.id, has_offset ? uint64_t{offset.id} + 1 : 0};
  return true;
}

bool DistAssembler::build_info(DistItem& object, const Fields& fields) {
  const auto& [path, offset, length, transforms] = fields;
  if (!path.is(Tag::Text) || !is_count(offset) || !is_count(length)) return false;
  if (!transforms.is(Tag::None)) return false;
  object = {Tag::Info, path.id, ranges_.size()};
  ranges_.push_back({offset.number, length.number});
  return true;
}

bool DistAssembler::build_properties(DistItem& object, const DistItem& state) {
  const auto node = to_node(state);
  if (!node || !drop_pairs(state)) return false;
  const Value properties = values_.tree.value(*node);
  const auto dtype = strided_dtype(properties);
  if (!dtype) return false;
  const uint32_t requires_grad = requires_grad_of(properties) ? 1 : 0;
  object = {Tag::Properties, requires_grad, static_cast<uint64_t>(*dtype)};
  return true;
}

bool DistAssembler::build_tensor(DistItem& object, const Fields& fields) {
  const auto& [properties, size, list, a] = fields;
  if (!properties.is(Tag::Properties) || !is_size(size) || !list.is(Tag::List)) return false;
  if (list.number != 0 && list.id + list.number != collector_.next_entries().boxes.size())
    return false;
  object = {Tag::Tensor, static_cast<uint32_t>(unnamed_.size())};
  DistEntries::Entry& tensor = unnamed_.emplace_back();
  tensor.shape = &values_.extents[size.id];
  tensor.dtype = static_cast<DType>(properties.number);
  tensor.requires_grad = properties.id == 1;
  tensor.box_count = list.number;
  return true;
}

// The root: its state, without what went to the collector.
bool DistAssembler::build_metadata(DistItem& object, const DistItem& state) {
  ValueTree& tree = values_.tree;
  const NodeId fields = tree.dict();
  int collected = 0;
  for (size_t i = 0; i < pairs_of(state).size(); i += 2) {
    const DistItem key = pairs_of(state)[i], value = pairs_of(state)[i + 1];
    const bool entries = value.is(Tag::Entries), places = value.is(Tag::Places);
    // Each under its name, and nothing else under these names: a dict may hold a key twice.
    const bool are_named =
        entries == (key.id == kStateDictMetadata) && places == (key.id == kStorageData);
    if (!key.is(Tag::Text) || !are_named) return false;
    const auto key_node = to_node(key);
    const auto node = entries ? keys() : places ? tree.dict() : to_node(value);
    if (!key_node || !node) return false;
    tree.set_item(fields, *key_node, *node);
    collected += entries ? 1 : places ? 2 : 0;
  }
  if (collected != 3 || !drop_pairs(state)) return false;
  root_ = tree.object(Construction::NewObj, tree.global(kMetadataModule, "Metadata"), tree.tuple());
  tree.set_state(*root_, fields);
  object = {Tag::Node, *root_};
  return true;
}

std::optional<NodeId> DistAssembler::keys() {
  const NodeId dict = values_.tree.dict();
  for (const uint32_t key : keys_) {
    values_.tree.set_item(dict, *to_node({Tag::Text, key}), values_.tree.none());
  }
  return dict;
}

std::optional<DistMetadata> DistAssembler::finish(const DistItem& root) {
  if (!root_ || !root.is(Tag::Node) || root.id != *root_) return std::nullopt;
  if (!unnamed_.empty() || !collector_.finish()) return std::nullopt;
  values_.tree.set_root(*root_);
  return DistMetadata{std::move(files_), collector_.take_tensors(), collector_.take_objects(),
                      std::move(values_.tree), collector_.region_ends()};
}

}  // namespace ckpt
