#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/checkpoint.h>
#include <ckpt/document.h>

namespace ckpt {

// A value that is no tensor, with the storages that the tensors inside it view.
struct ObjectTree {
  std::string file;  // as ObjectEntry::file
  std::string key;
  std::shared_ptr<const Document> document;
  NodeId root = 0;            // the object inside the document's tree
  bool lists_tensors = true;  // false where Inventory::tensors has the tensors inside it already
  Kind key_kind = Kind::Str;  // as TensorEntry::key_kind
};

// What hash() and diff() look at, under the names by which they are to be listed or matched: what
// is stored (native), or what it means (canonical names). Chunks lie in the files of one
// PayloadSource.
struct Inventory {
  std::vector<TensorEntry> tensors;
  std::vector<ObjectTree> objects;
};

// The tree of Checkpoint::state(), or else those of all its torch.save files.
struct NamedDocument {
  std::string path, file;  // file: empty where keys alone tell a place
  const Document* document = nullptr;
};
std::vector<NamedDocument> documents_of(const Checkpoint& checkpoint);

// Everything that is stored, under the names by which it is stored, duplicates included. Objects of
// torch.save files point into the checkpoint, which must outlive the inventory.
CKPT_EXPORT Inventory native_inventory(const Checkpoint& checkpoint);

// Plain state dicts under their places: JSON pointers to where a tensor or object is in the nested
// state dict. DCP's planner_data gives them, a key of safetensors is one step, and a torch.save
// file is entered as DCP would flatten it, without what DCP has no place for: empty mappings and
// attributes of tensors. Throws Unsupported for checkpoints that are no plain state dict.
// Kept: a key that is a string and reads like one of another type is in quotes ('0'), so that it is
// not that one, 0. AsText: as it reads, for checkpoints that have no types of keys.
enum class KeyTypes : uint8_t { Kept, AsText };
CKPT_EXPORT Inventory plain_inventory(const Checkpoint& checkpoint,
                                      KeyTypes types = KeyTypes::Kept);
// Whether a plain state dict has the types of its keys. DCP folders have only those that Shardwise
// wrote down in them, safetensors none.
bool has_typed_keys(const Checkpoint& checkpoint);

// Turns the places of plain_inventory() into names that every format has: their steps, joined by
// '.', as DCP and ckpt::convert() name them. Returns false, with all places as they were, where two
// of them have one name, or a name is empty or begins with '/', as places do: so no list of places
// can equal a list of names.
bool join_places(Inventory& inventory);
// Whether the names are places still.
bool names_places(const Inventory& inventory);

}  // namespace ckpt
