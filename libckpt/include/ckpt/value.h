#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/export.h>

namespace ckpt {

// What a pickle says, as inert data. Nothing in it was called or imported: a class is its two
// names, an object is the callable, the arguments and the state that would have built it. Enough to
// write the same pickle again.
enum class Kind : uint8_t {
  None,
  Bool,
  Int,
  BigInt,
  Float,  // BigInt: more than 64 bits, as decimal text
  Str,
  Bytes,
  ByteArray,  // Str: UTF-8 (lone surrogates as Python's surrogatepass)
  List,
  Tuple,
  Dict,
  Set,
  FrozenSet,
  Global,        // module and name of a class or function
  Object,        // callable(*args), then appended elements, set items, state
  PersistentId,  // torch: the storage tuple
};

enum class Construction : uint8_t { Reduce, NewObj, NewObjEx };  // which opcode builds the object

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = 0xFFFFFFFF;

class ValueTree;

// One value of a tree: a view that must not outlive the tree, cheap to copy.
// An accessor asked for another kind's content throws Error(Corrupt) that names both kinds.
class CKPT_EXPORT Value {
 public:
  Value(const ValueTree& tree, NodeId id) : tree_(&tree), id_(id) {}

  Kind kind() const;
  NodeId id() const { return id_; }
  const ValueTree& tree() const { return *tree_; }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_global(std::string_view module, std::string_view name) const;
  bool is_none() const { return kind() == Kind::None; }

  bool as_bool() const;
  int64_t as_int() const;           // Int or Bool
  double as_float() const;          // Float, Int or Bool
  std::string_view text() const;    // Str, Bytes, ByteArray, BigInt
  std::string_view module() const;  // Global
  std::string_view name() const;    // Global

  size_t size() const;  // elements, or pairs of a Dict; of an Object: elements appended to it
  Value operator[](size_t index) const;  // List, Tuple, Set, FrozenSet, Object
  size_t item_count() const;             // Dict; Object (an OrderedDict's pairs)
  std::pair<Value, Value> item(size_t index) const;
  std::optional<Value> find(
      std::string_view key) const;               // Str key of a Dict or Object; the last one wins
  std::optional<Value> find(int64_t key) const;  // Int key
  Value at(std::string_view key) const;          // find, or Error(Corrupt) that names the key

  Construction construction() const;    // Object
  Value callable() const;               // Object
  Value args() const;                   // Object
  std::optional<Value> kwargs() const;  // Object built by NEWOBJ_EX
  std::optional<Value> state() const;   // Object that was BUILt
  Value persistent_id() const;          // PersistentId

 private:
  const ValueTree* tree_;
  NodeId id_;
};

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
  size_t node_count() const;

  NodeId none();
  NodeId boolean(bool value);
  NodeId integer(int64_t value);
  NodeId big_integer(std::string decimal);
  NodeId real(double value);
  NodeId str(std::string_view utf8);
  NodeId bytes(std::string_view content, Kind kind = Kind::Bytes);
  NodeId sequence(Kind kind, std::span<const NodeId> elements);  // List, Tuple, Set, FrozenSet
  NodeId list(std::initializer_list<NodeId> elements = {});
  NodeId tuple(std::initializer_list<NodeId> elements = {});
  NodeId dict();
  NodeId global(std::string_view module, std::string_view name);
  NodeId global(NodeId module, NodeId name);  // of two Str nodes, which it shares
  NodeId object(Construction construction, NodeId callable, NodeId args, NodeId kwargs = kNoNode);
  NodeId persistent_id(NodeId id);

  void append(NodeId container, NodeId element);            // List, Tuple, Set, FrozenSet, Object
  void replace(NodeId list, size_t index, NodeId element);  // List; index < its size
  void set_item(NodeId container, NodeId key,
                NodeId value);  // Dict, Object; no search for an equal key
  void put(NodeId container, std::string_view key,
           NodeId value);  // replaces the value of a Str key, or adds it
  bool erase(NodeId container, std::string_view key);  // true if the Str key was there
  // In each dict, OrderedDict, defaultdict and Counter, of pairs whose keys are equal in Python (1
  // and True): keeps the place and the key of the first, the value of the last.
  void merge_equal_keys();
  void set_state(NodeId object, NodeId state);
  void set_persistent_id(NodeId persistent_id, NodeId id);

  // Copies a value of another tree with all that it refers to, sharing and cycles kept. No
  // recursion. The new nodes are those from the returned one up to node_count().
  NodeId copy(Value value);

 private:
  friend class Value;
  struct Nodes;
  std::unique_ptr<Nodes> nodes_;
};

}  // namespace ckpt
