#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <ckpt/value_tree.h>

#include "format/torch_dist/interned.h"

namespace ckpt {

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
