#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <ckpt/export.h>
#include <ckpt/value.h>

namespace ckpt {

// Owns the nodes. Values may be shared and may form cycles, as in Python. Not thread-safe while it
// changes.
class CKPT_EXPORT ValueTree {
 public:
  ValueTree();
  ValueTree(const ValueTree&);
  ValueTree(ValueTree&&) noexcept;
  ValueTree& operator=(ValueTree) noexcept;
  ~ValueTree();

  Value root() const;
  void set_root(NodeId id);
  Value value(NodeId id) const { return Value(*this, id); }
  CKPT_PRIVATE size_t node_count() const;

  NodeId none();
  NodeId boolean(bool value);
  NodeId integer(int64_t value);
  CKPT_PRIVATE NodeId big_integer(std::string decimal);
  NodeId real(double value);
  NodeId str(std::string_view utf8);
  NodeId bytes(std::string_view content, Kind kind = Kind::Bytes);
  NodeId sequence(Kind kind, std::span<const NodeId> elements);  // List, Tuple, Set, FrozenSet
  NodeId list(std::initializer_list<NodeId> elements = {});
  NodeId tuple(std::initializer_list<NodeId> elements = {});
  NodeId dict();
  NodeId global(std::string_view module, std::string_view name);
  CKPT_PRIVATE NodeId global(NodeId module, NodeId name);  // of two Str nodes, which it shares
  NodeId object(Construction construction, NodeId callable, NodeId args, NodeId kwargs = kNoNode);
  CKPT_PRIVATE NodeId persistent_id(NodeId id);

  void append(NodeId container, NodeId element);  // List, Tuple, Set, FrozenSet, Object
  CKPT_PRIVATE void replace(NodeId list, size_t index, NodeId element);  // List; index < its size
  void set_item(NodeId container, NodeId key,
                NodeId value);  // Dict, Object; no search for an equal key
  void put(NodeId container, std::string_view key,
           NodeId value);  // replaces the value of a Str key, or adds it
  CKPT_PRIVATE bool erase(NodeId container, std::string_view key);  // true if the Str key was there
  // In each dict, OrderedDict, defaultdict and Counter, of pairs whose keys are equal in Python (1
  // and True): keeps the place and the key of the first, the value of the last.
  CKPT_PRIVATE void merge_equal_keys();
  void set_state(NodeId object, NodeId state);
  CKPT_PRIVATE void set_persistent_id(NodeId persistent_id, NodeId id);

  // Copies a value of another tree with all that it refers to, sharing and cycles kept. No
  // recursion. The new nodes are those from the returned one up to node_count().
  NodeId copy(Value value);

 private:
  friend class Value;
  struct Nodes;
  std::unique_ptr<Nodes> nodes_;
};

}  // namespace ckpt
