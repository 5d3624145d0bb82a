#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

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

// The pairs of a Dict or an Object in their order; of nothing none.
class Items {
 public:
  struct Iterator {
    const Value* holder;
    size_t index;
    std::pair<Value, Value> operator*() const { return holder->item(index); }
    void operator++() { ++index; }
    bool operator!=(const Iterator& other) const { return index != other.index; }
  };
  explicit Items(std::optional<Value> holder) : holder_(holder) {}
  Iterator begin() const { return {holder_ ? &*holder_ : nullptr, 0}; }
  Iterator end() const { return {nullptr, holder_ ? holder_->item_count() : 0}; }

 private:
  std::optional<Value> holder_;
};
inline Items items_of(std::optional<Value> holder) { return Items(holder); }

}  // namespace ckpt
