#include "format/torch_dist/dist_items.h"

#include <cstring>

namespace ckpt {
namespace {

uint64_t mixed(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

using Tag = DistItem::Tag;

struct KnownClass {
  std::string_view module, name;
  DistClass known;
};
constexpr KnownClass kKnownClasses[] = {
    {kMetadataModule, "Metadata", DistClass::Metadata},
    {kMcoreMetadataModule, "MCoreMetadata", DistClass::Metadata},
    {kMetadataModule, "TensorStorageMetadata", DistClass::Tensor},
    {kMetadataModule, "BytesStorageMetadata", DistClass::Bytes},
    {kMetadataModule, "ChunkStorageMetadata", DistClass::Chunk},
    {kMetadataModule, "MetadataIndex", DistClass::Index},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", DistClass::Info},
    {kMetadataModule, "TensorProperties", DistClass::Properties},
    {"torch", "Size", DistClass::Size},
};

}  // namespace

uint32_t hash_of(std::span<const uint64_t> numbers) {
  uint64_t hash = numbers.size() + 1;
  for (const uint64_t number : numbers) hash = mixed(hash, number);
  return static_cast<uint32_t>(hash);
}

uint32_t hash_of(std::string_view text) {
  uint64_t hash = text.size() + 1, word = 0;
  const size_t last = text.size() - std::min(text.size(), sizeof(word));
  for (size_t at = 0; at < last; at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    hash = mixed(hash, word);
  }
  word = 0;
  if (text.size() >= sizeof(word)) {  // the last ones overlap those before
    std::memcpy(&word, text.data() + last, sizeof(word));
  } else {
    std::ranges::for_each(text, [&](char c) { word = word << 8 | static_cast<uint8_t>(c); });
  }
  return static_cast<uint32_t>(mixed(hash, word));
}

uint32_t DistValues::add_class(uint32_t module, uint32_t name) {
  DistClass known = DistClass::Other;
  for (const KnownClass& candidate : kKnownClasses) {
    if (candidate.name == texts[name] && candidate.module == texts[module]) known = candidate.known;
  }
  classes_.push_back({module, name, known});
  return static_cast<uint32_t>(classes_.size() - 1);
}

DistClass DistValues::known_class(const DistItem& item) const {
  return item.is(Tag::Class) ? classes_[item.id].known : DistClass::Other;
}

std::optional<NodeId> DistValues::to_node(const DistItem& item, std::span<const DistItem> pairs) {
  switch (item.tag) {
    case Tag::None: return tree.none();
    case Tag::Bool: return tree.boolean(item.number != 0);
    case Tag::Int: return tree.integer(static_cast<int64_t>(item.number));
    case Tag::Text: return text_node(item.id);
    case Tag::Class: return global_node(classes_[item.id]);
    case Tag::Numbers: return numbers_node(item.id);
    case Tag::Wrapped: return tree.tuple({numbers_node(item.id)});
    case Tag::Size:
      return tree.object(Construction::Reduce, tree.global("torch", "Size"),
                         tree.tuple({numbers_node(item.id)}));
    case Tag::Node: return item.id;
    case Tag::Dict: return dict_node(pairs);
    case Tag::List: return item.number == 0 ? std::optional(tree.list()) : std::nullopt;
    default: return std::nullopt;
  }
}

NodeId DistValues::global_node(const Class& of) {
  const NodeId module = text_node(of.module);
  return tree.global(module, text_node(of.name));
}

NodeId DistValues::text_node(uint32_t text) {
  if (text_nodes_.size() < texts.size()) text_nodes_.resize(texts.size(), kNoNode);
  if (text_nodes_[text] == kNoNode) text_nodes_[text] = tree.str(texts[text]);
  return text_nodes_[text];
}

NodeId DistValues::numbers_node(uint32_t numbers) {
  std::vector<NodeId> elements;
  for (const uint64_t number : extents[numbers]) {
    elements.push_back(tree.integer(static_cast<int64_t>(number)));
  }
  return tree.sequence(Kind::Tuple, elements);
}

// Pairs hold no dicts: those became nodes when they were stored.
std::optional<NodeId> DistValues::dict_node(std::span<const DistItem> pairs) {
  const NodeId dict = tree.dict();
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const bool hashable = pairs[i].is(Tag::Text) || pairs[i].is(Tag::Int);
    const auto key = to_node(pairs[i]), value = to_node(pairs[i + 1]);
    if (!hashable || !key || !value) return std::nullopt;
    tree.set_item(dict, *key, *value);
  }
  return dict;
}

}  // namespace ckpt
