#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/value.h>
#include <ckpt/value_tree.h>

namespace ckpt {

// Throws Error(Corrupt): "expected a list, found int".
[[noreturn]] void wrong_kind(const char* expected, Kind found);

// One node is 16 bytes; what does not fit lies in side tables.
//   Bool, Int, Float          bits: the value
//   BigInt, Str, Bytes, ...   bits: offset into text, extra: count of bytes
//   Tuple, FrozenSet          bits: offset into pool, extra: count of elements
//   List, Set, Dict           extra: index into lists (a Dict alternates keys and values)
//   Global                    bits: module and name (two Str nodes)
//   Object                    extra: index into objects
//   PersistentId              extra: the id's node
struct ValueTree::Nodes {
  static constexpr uint64_t kTextBytesMax = 0xFFFFFFFE;

  struct Node {
    Kind kind;
    uint32_t extra;
    uint64_t bits;
  };
  struct ObjectParts {
    Construction construction;
    NodeId callable, args, kwargs = kNoNode, state = kNoNode;
    std::vector<NodeId> elements, items;
  };
  using Children = std::span<const NodeId>;

  std::vector<Node> nodes;
  std::string text;
  std::vector<NodeId> pool;
  std::vector<std::vector<NodeId>> lists;
  std::vector<ObjectParts> objects;
  NodeId root = kNoNode;
  std::map<std::pair<std::string, std::string>, NodeId> globals;  // those made by name: shared

  NodeId add(Kind kind, uint32_t extra, uint64_t bits) {
    if (nodes.size() >= kNoNode) {
      throw Error(ErrorCode::Unsupported, {}, "a value tree holds more than 2^32 - 2 values");
    }
    nodes.push_back({kind, extra, bits});
    return static_cast<NodeId>(nodes.size() - 1);
  }

  NodeId add_text(Kind kind, std::string_view content) {
    if (content.size() > kTextBytesMax) {
      throw Error(ErrorCode::Unsupported, {}, "a string of 4 GiB or more");
    }
    const uint64_t offset = text.size();
    text.append(content);
    return add(kind, static_cast<uint32_t>(content.size()), offset);
  }

  NodeId add_pooled(Kind kind, Children elements) {
    const uint64_t offset = pool.size();
    pool.insert(pool.end(), elements.begin(), elements.end());
    return add(kind, static_cast<uint32_t>(elements.size()), offset);
  }

  NodeId add_list(Kind kind, std::vector<NodeId> elements) {
    lists.push_back(std::move(elements));
    return add(kind, static_cast<uint32_t>(lists.size() - 1), 0);
  }

  NodeId add_object(ObjectParts parts) {
    objects.push_back(std::move(parts));
    return add(Kind::Object, static_cast<uint32_t>(objects.size() - 1), 0);
  }

  const Node& operator[](NodeId id) const { return nodes[id]; }

  std::string_view text_of(NodeId id) const {
    return std::string_view(text).substr(nodes[id].bits, nodes[id].extra);
  }

  // The elements of a sequence; of an Object those that were appended to it.
  Children elements(NodeId id) const {
    const Node& node = nodes[id];
    switch (node.kind) {
      case Kind::Tuple:
      case Kind::FrozenSet: return Children(pool).subspan(node.bits, node.extra);
      case Kind::List:
      case Kind::Set: return lists[node.extra];
      case Kind::Object: return objects[node.extra].elements;
      default: wrong_kind("a sequence", node.kind);
    }
  }

  // Keys and values in turn.
  Children items(NodeId id) const {
    const Node& node = nodes[id];
    if (node.kind == Kind::Dict) return lists[node.extra];
    if (node.kind == Kind::Object) return objects[node.extra].items;
    wrong_kind("a dict", node.kind);
  }

  std::vector<NodeId>& items_to_change(NodeId id) {
    const Node& node = nodes[id];
    if (node.kind == Kind::Dict) return lists[node.extra];
    if (node.kind == Kind::Object) return objects[node.extra].items;
    wrong_kind("a dict", node.kind);
  }

  const ObjectParts& object(NodeId id) const {
    if (nodes[id].kind != Kind::Object) wrong_kind("an object", nodes[id].kind);
    return objects[nodes[id].extra];
  }

  // Position of the last pair with this Str key, or the count of entries.
  size_t find_key(Children pairs, std::string_view key) const {
    for (size_t i = pairs.size(); i >= 2; i -= 2) {
      const NodeId candidate = pairs[i - 2];
      if (nodes[candidate].kind == Kind::Str && text_of(candidate) == key) return i - 2;
    }
    return pairs.size();
  }
};

// Calls visit(child) for all that a value holds, in the order in which a pickle makes an object and
// fills it; the names of a class are not held.
template <class Visit>
void for_each_child(const Value& value, Visit visit) {
  const bool is_object = value.is(Kind::Object), is_dict = value.is(Kind::Dict);
  if (value.is(Kind::PersistentId)) visit(value.persistent_id());
  if (is_object) {
    visit(value.callable());
    visit(value.args());
    if (const auto kwargs = value.kwargs()) visit(*kwargs);
    if (const auto state = value.state()) visit(*state);
  }
  const bool is_sequence = value.is(Kind::List) || value.is(Kind::Tuple) || value.is(Kind::Set) ||
                           value.is(Kind::FrozenSet);
  const size_t elements = is_object || is_sequence ? value.size() : 0;
  for (size_t i = 0; i < elements; ++i) visit(value[i]);
  const size_t items = is_object || is_dict ? value.item_count() : 0;
  for (size_t i = 0; i < items; ++i) {
    visit(value.item(i).first);
    visit(value.item(i).second);
  }
}

}  // namespace ckpt
