#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/export.h>
#include <ckpt/extents.h>
#include <ckpt/value.h>
#include <ckpt/value_tree.h>

namespace ckpt {

// One storage of a torch.save archive: the bytes that tensors of the archive view.
struct StorageRecord {
  std::string key;       // "0", "1", ... as in the persistent id
  StorageRegion region;  // where its bytes are; region.bytes.count_bytes is its size
};

// A torch.save archive, opened: the value tree and the storages that its tensors view. No payload
// was read.
struct CKPT_EXPORT Document {
  ValueTree tree;
  std::vector<StorageRecord> storages;  // sorted by key
  // Of files of ranks that are read as one: what tensors in parts view, by key.
  std::map<std::string, std::vector<Chunk>, std::less<>> joined = {};
  const StorageRecord* find_storage(std::string_view key) const;
};

// A tensor as a value tree states it: torch._utils._rebuild_tensor, _v2 or _v3, _rebuild_parameter,
// _rebuild_parameter_with_state, or torch._tensor._rebuild_from_type_v2 around one of them.
struct TensorView {
  std::string storage_key;
  DType dtype = DType::Float32;
  uint64_t storage_count_bytes = 0;  // what the persistent id says that the storage holds
  uint64_t offset = 0;               // elements
  Extents shape;
  Extents strides;  // elements
  bool requires_grad = false;
  NodeId requires_grad_node = kNoNode;  // what says so
  bool is_parameter = false;            // torch.nn.Parameter
  std::optional<NodeId> attributes;     // the state that its rebuilding function is given
  std::optional<NodeId> subclass;       // its class, if neither torch.Tensor nor Parameter
};

// nullopt when `value` is no tensor; Error(Corrupt) when it says that it is one and is malformed or
// leaves its storage; Error(Unsupported) for kinds that torch has and Shardwise has not (sparse,
// quantised), and for tensors that the pickle changes after they are built.
CKPT_EXPORT std::optional<TensorView> as_tensor(const Value& value);

// What a tensor is besides its elements, dtype and shape: the attributes of its state, in their
// order, then `__class__` of a subclass and `requires_grad` where it is true.
struct TensorAttribute {
  std::string name;
  Value value;
};
std::vector<TensorAttribute> attributes_of(const ValueTree& tree, const TensorView& tensor);

struct TensorAt {
  std::string pointer;  // RFC 6901 pointer; "@b" for an attribute of an object; text of keys that
                        // are not strings
  NodeId node;
  TensorView view;
  Kind key_kind = Kind::Str;  // of the last step, where a mapping gives it
};

// Every tensor of the tree in the order of the file, one that is reached twice listed twice. No
// recursion.
std::vector<TensorAt> tensors_in(const Document& document);
std::vector<TensorAt> tensors_in(const Value& root);

// A tensor of a document as an entry of a catalog that has its storages: Checkpoint::read() takes
// it. `file`: to print in errors. Throws Corrupt where its storage is missing or has another size
// than the pickle says.
TensorEntry make_tensor_entry(const Document& document, const TensorAt& tensor,
                              std::string_view file);

// Python's str() of a dictionary key, as pointers and listings show it: 3, (torch.bfloat16,
// torch.float32).
CKPT_EXPORT std::string key_text(const Value& key);

// Adds a tensor that owns the whole storage `storage_key`, row-major, as torch.save writes it.
NodeId add_tensor(ValueTree& tree, DType dtype, const Extents& shape, std::string_view storage_key);

// torch.Size and OrderedDict, as pickles state them.
NodeId add_size(ValueTree& tree, const Extents& sizes);
NodeId add_ordered_dict(ValueTree& tree);

// A tensor of which a torch.save file holds what one rank had: a DTensor, a ShardedTensor, a flat
// parameter of FSDP. Its local tensors are listed as any others.
struct TensorPart {
  std::string pointer;  // of the DTensor or ShardedTensor; of a flat parameter itself
  // "DTensor, Shard(0) on mesh ('fsdp',) of size 4: this file holds part 1 of 4", escaped.
  std::string words;
  std::optional<Extents> shape;      // of the whole tensor; none where the file does not say it
  bool is_whole = false;             // the file holds all of it: replicated, or on one rank
  std::vector<std::string> tensors;  // keys of its local tensors, as tensors_in() gives them
};

// In the order of the file; one inside another is left out. What torch of another version says
// otherwise is named with fewer words, never left out. Pointers start at `root`.
std::vector<TensorPart> parts_in(const Value& root);

}  // namespace ckpt
