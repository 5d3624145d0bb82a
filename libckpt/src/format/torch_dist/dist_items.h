#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/extents.h>
#include <ckpt/value_tree.h>

namespace ckpt {

uint32_t hash_of(std::string_view text);
uint32_t hash_of(std::span<const uint64_t> numbers);
inline bool are_equal(std::string_view a, std::string_view b) { return a == b; }
inline bool are_equal(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  return std::ranges::equal(a, b);
}

// Values that occur often, each kept once, by number: names, and short lists of numbers, of which
// 10^6 chunks have few different ones.
template <class Value, class View>
class Interned {
 public:
  // nullopt where the value is new and not valid, or where too many share its place: that is for
  // the general reader, so that nobody can choose values whose search takes long.
  template <class IsValid>
  std::optional<uint32_t> intern(View value, IsValid is_valid) {
    if (values_.size() * 2 >= slots_.size() && !grow()) return std::nullopt;
    const uint32_t hash = hash_of(value);
    Slot* slot = slot_of(value, hash);
    if (slot == nullptr) return std::nullopt;
    if (slot->id_plus_one == 0) {
      if (!is_valid(value)) return std::nullopt;
      values_.emplace_back(value.begin(), value.end());
      *slot = {static_cast<uint32_t>(values_.size()), hash};
    }
    return slot->id_plus_one - 1;
  }
  std::optional<uint32_t> intern(View value) {
    return intern(value, [](View) { return true; });
  }

  // Of a value that came behind the one called `before`: rows of values come again, as chunks of
  // every state of a model, and are found where they were without a search.
  std::optional<uint32_t> intern_behind(uint32_t before, View value) {
    if (before < next_.size() && are_equal(values_[next_[before]], value)) return next_[before];
    const std::optional<uint32_t> id = intern(value);
    if (!id) return id;
    if (before >= next_.size()) next_.resize(values_.size());
    if (before < next_.size()) next_[before] = *id;
    return id;
  }

  const Value& operator[](uint32_t id) const { return values_[id]; }
  size_t size() const { return values_.size(); }

 private:
  static constexpr size_t kSlotsMin = 1024;
  static constexpr size_t kProbesMax = 1024;  // of half empty slots: chance never needs as many

  struct Slot {
    uint32_t id_plus_one = 0;  // 0: free
    uint32_t hash = 0;
  };

  // Where the value is, or the free place for it; null: neither is near.
  Slot* slot_of(View value, uint32_t hash) {
    const size_t mask = slots_.size() - 1;
    for (size_t probe = 0; probe < kProbesMax; ++probe) {
      Slot& slot = slots_[(hash + probe) & mask];
      if (slot.id_plus_one == 0) return &slot;
      if (slot.hash == hash && are_equal(values_[slot.id_plus_one - 1], value)) return &slot;
    }
    return nullptr;
  }

  bool grow() {
    const std::vector<Slot> before = std::move(slots_);
    slots_.assign(std::max(kSlotsMin, before.size() * 2), {});
    for (const Slot& slot : before) {
      if (slot.id_plus_one == 0) continue;
      Slot* place = slot_of(values_[slot.id_plus_one - 1], slot.hash);
      if (place == nullptr) return false;
      *place = slot;
    }
    return true;
  }

  std::deque<Value> values_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> next_;  // [id] what came behind it last
};

using InternedTexts = Interned<std::string, std::string_view>;
using InternedExtents = Interned<Extents, std::span<const uint64_t>>;

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
// Of Megatron-Core 0.15, which keeps mcore_data in a class of its own; before and after it is an
// attribute of PyTorch's.
inline constexpr std::string_view kMcoreMetadataModule =
    "megatron.core.dist_checkpointing.strategies.torch";

// The classes of a .metadata that are known by name.
enum class DistClass : uint8_t {
  Other,
  Metadata,
  Tensor,
  Bytes,
  Chunk,
  Index,
  Info,
  Properties,
  Size
};

inline constexpr size_t kDistClasses = static_cast<size_t>(DistClass::Size) + 1;

// What stands for a value while a .metadata streams by: 16 bytes, and most without a heap
// allocation.
struct DistItem {
  enum class Tag : uint8_t {
    None,
    Bool,        // number
    Int,         // number: as int64_t
    Text,        // id: of InternedTexts
    Class,       // id: of DistValues::classes
    Numbers,     // id: of InternedExtents; a tuple of counts, or the empty tuple
    Wrapped,     // id: the same, in a tuple of its own
    Size,        // id: the same, as torch.Size
    Node,        // id: of a node of DistValues::tree
    Instance,    // id: a DistClass; of that class, without its state
    Dict,        // id: first of its pairs, number: how many
    Entries,     // a Dict that was given to the collector: state_dict_metadata
    Places,      // storage_data
    List,        // id: first of its chunks, number: how many
    Chunk,       // id: offsets, number: sizes (of InternedExtents)
    Tensor,      // id: of the collector
    Properties,  // number: the tensor's DType; id: 1 where it requires a gradient
    Index,       // id: key (text), number: offsets + 1, or 0 where there are none
    Info,        // id: path (text), number: which range of bytes
  };
  Tag tag = Tag::None;
  uint32_t id = 0;
  uint64_t number = 0;

  bool is(Tag other) const { return tag == other; }
};

// The values that items refer to, and the tree of what no item stands for.
class DistValues {
 public:
  InternedTexts texts;
  InternedExtents extents;
  ValueTree tree;

  uint32_t add_class(uint32_t module, uint32_t name);  // ids of texts
  DistClass known_class(const DistItem& item) const;   // Other: not known, or no class

  // The item as a node of the tree; nullopt for one that only a known class may hold.
  std::optional<NodeId> to_node(const DistItem& item, std::span<const DistItem> pairs = {});

 private:
  struct Class {
    uint32_t module, name;
    DistClass known;
  };
  NodeId global_node(const Class& of);
  NodeId text_node(uint32_t text);
  NodeId numbers_node(uint32_t numbers);
  std::optional<NodeId> dict_node(std::span<const DistItem> pairs);

  std::vector<Class> classes_;
  std::vector<NodeId> text_nodes_;  // [text]
};

}  // namespace ckpt
