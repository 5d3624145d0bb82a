#include <ckpt/value.h>

#include <bit>
#include <unordered_map>

#include <ckpt/error.h>
#include <ckpt/value_tree.h>

#include "codec/value_nodes.h"

namespace ckpt {
namespace {

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[] = {
      "None", "bool",  "int",  "big int", "float",     "str",    "bytes",  "bytearray",
      "list", "tuple", "dict", "set",     "frozenset", "global", "object", "persistent id"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

void wrong_kind(const char* expected, Kind found) {
  throw Error(ErrorCode::Corrupt, {},
              std::string("expected ") + expected + ", found " + kind_name(found));
}

Kind Value::kind() const { return (*tree_->nodes_)[id_].kind; }

bool Value::is_global(std::string_view module, std::string_view name) const {
  return kind() == Kind::Global && this->module() == module && this->name() == name;
}

bool Value::as_bool() const {
  if (kind() != Kind::Bool) wrong_kind("a bool", kind());
  return (*tree_->nodes_)[id_].bits != 0;
}

int64_t Value::as_int() const {
  if (kind() != Kind::Int && kind() != Kind::Bool) wrong_kind("an int", kind());
  return static_cast<int64_t>((*tree_->nodes_)[id_].bits);
}

double Value::as_float() const {
  if (kind() == Kind::Int || kind() == Kind::Bool) return static_cast<double>(as_int());
  if (kind() != Kind::Float) wrong_kind("a float", kind());
  return std::bit_cast<double>((*tree_->nodes_)[id_].bits);
}

std::string_view Value::text() const {
  switch (kind()) {
    case Kind::Str:
    case Kind::Bytes:
    case Kind::ByteArray:
    case Kind::BigInt: return tree_->nodes_->text_of(id_);
    default: wrong_kind("a string", kind());
  }
}

std::string_view Value::module() const {
  if (kind() != Kind::Global) wrong_kind("a class or function", kind());
  return tree_->nodes_->text_of(static_cast<NodeId>((*tree_->nodes_)[id_].bits >> 32));
}

std::string_view Value::name() const {
  if (kind() != Kind::Global) wrong_kind("a class or function", kind());
  return tree_->nodes_->text_of(static_cast<NodeId>((*tree_->nodes_)[id_].bits));
}

size_t Value::size() const {
  return kind() == Kind::Dict ? item_count() : tree_->nodes_->elements(id_).size();
}

Value Value::operator[](size_t index) const {
  const auto elements = tree_->nodes_->elements(id_);
  if (index >= elements.size()) {
    throw Error(ErrorCode::Corrupt, {},
                "expected more than " + std::to_string(index) + " elements, found " +
                    std::to_string(elements.size()));
  }
  return {*tree_, elements[index]};
}

size_t Value::item_count() const { return tree_->nodes_->items(id_).size() / 2; }

std::pair<Value, Value> Value::item(size_t index) const {
  const auto items = tree_->nodes_->items(id_);
  return {Value(*tree_, items[2 * index]), Value(*tree_, items[2 * index + 1])};
}

std::optional<Value> Value::find(std::string_view key) const {
  const auto items = tree_->nodes_->items(id_);
  const size_t position = tree_->nodes_->find_key(items, key);
  if (position == items.size()) return std::nullopt;
  return Value(*tree_, items[position + 1]);
}

std::optional<Value> Value::find(int64_t key) const {
  const auto items = tree_->nodes_->items(id_);
  for (size_t i = items.size(); i >= 2; i -= 2) {
    const auto& node = (*tree_->nodes_)[items[i - 2]];
    if (node.kind == Kind::Int && static_cast<int64_t>(node.bits) == key) {
      return Value(*tree_, items[i - 1]);
    }
  }
  return std::nullopt;
}

Value Value::at(std::string_view key) const {
  if (auto value = find(key)) return *value;
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = std::string(key)}, "the key is missing");
}

Construction Value::construction() const { return tree_->nodes_->object(id_).construction; }
Value Value::callable() const { return {*tree_, tree_->nodes_->object(id_).callable}; }
Value Value::args() const { return {*tree_, tree_->nodes_->object(id_).args}; }

std::optional<Value> Value::kwargs() const {
  const NodeId id = tree_->nodes_->object(id_).kwargs;
  return id == kNoNode ? std::nullopt : std::optional(Value(*tree_, id));
}

std::optional<Value> Value::state() const {
  const NodeId id = tree_->nodes_->object(id_).state;
  return id == kNoNode ? std::nullopt : std::optional(Value(*tree_, id));
}

Value Value::persistent_id() const {
  if (kind() != Kind::PersistentId) wrong_kind("a persistent id", kind());
  return {*tree_, (*tree_->nodes_)[id_].extra};
}

ValueTree::ValueTree() : nodes_(std::make_unique<Nodes>()) {}
ValueTree::ValueTree(const ValueTree& other) : nodes_(std::make_unique<Nodes>(*other.nodes_)) {}
ValueTree::ValueTree(ValueTree&&) noexcept = default;
ValueTree& ValueTree::operator=(ValueTree other) noexcept {
  nodes_.swap(other.nodes_);
  return *this;
}
ValueTree::~ValueTree() = default;

Value ValueTree::root() const {
  if (nodes_->root == kNoNode) throw Error(ErrorCode::Corrupt, {}, "the value tree is empty");
  return {*this, nodes_->root};
}
void ValueTree::set_root(NodeId id) { nodes_->root = id; }
size_t ValueTree::node_count() const { return nodes_->nodes.size(); }

NodeId ValueTree::none() { return nodes_->add(Kind::None, 0, 0); }
NodeId ValueTree::boolean(bool value) { return nodes_->add(Kind::Bool, 0, value ? 1 : 0); }
NodeId ValueTree::integer(int64_t value) {
  return nodes_->add(Kind::Int, 0, static_cast<uint64_t>(value));
}
NodeId ValueTree::big_integer(std::string decimal) {
  return nodes_->add_text(Kind::BigInt, decimal);
}
NodeId ValueTree::real(double value) {
  return nodes_->add(Kind::Float, 0, std::bit_cast<uint64_t>(value));
}
NodeId ValueTree::str(std::string_view utf8) { return nodes_->add_text(Kind::Str, utf8); }
NodeId ValueTree::bytes(std::string_view content, Kind kind) {
  return nodes_->add_text(kind, content);
}

NodeId ValueTree::sequence(Kind kind, std::span<const NodeId> elements) {
  if (kind == Kind::Tuple || kind == Kind::FrozenSet) return nodes_->add_pooled(kind, elements);
  return nodes_->add_list(kind, {elements.begin(), elements.end()});
}
NodeId ValueTree::list(std::initializer_list<NodeId> elements) {
  return sequence(Kind::List, {elements.begin(), elements.size()});
}
NodeId ValueTree::tuple(std::initializer_list<NodeId> elements) {
  return sequence(Kind::Tuple, {elements.begin(), elements.size()});
}
NodeId ValueTree::dict() { return nodes_->add_list(Kind::Dict, {}); }

NodeId ValueTree::global(std::string_view module, std::string_view name) {
  const auto [known, is_new] =
      nodes_->globals.try_emplace({std::string(module), std::string(name)}, kNoNode);
  if (is_new) {
    const NodeId module_id = str(module);
    known->second = global(module_id, str(name));
  }
  return known->second;
}

NodeId ValueTree::global(NodeId module, NodeId name) {
  return nodes_->add(Kind::Global, 0, uint64_t{module} << 32 | name);
}

NodeId ValueTree::object(Construction construction, NodeId callable, NodeId args, NodeId kwargs) {
  return nodes_->add_object({construction, callable, args, kwargs, kNoNode, {}, {}});
}
NodeId ValueTree::persistent_id(NodeId id) { return nodes_->add(Kind::PersistentId, id, 0); }

void ValueTree::append(NodeId container, NodeId element) {
  const auto& node = (*nodes_)[container];
  switch (node.kind) {
    case Kind::List:
    case Kind::Set: nodes_->lists[node.extra].push_back(element); break;
    case Kind::Object: nodes_->objects[node.extra].elements.push_back(element); break;
    default: wrong_kind("a list, a set or an object", node.kind);
  }
}

void ValueTree::replace(NodeId list, size_t index, NodeId element) {
  const auto& node = (*nodes_)[list];
  if (node.kind != Kind::List) wrong_kind("a list", node.kind);
  nodes_->lists[node.extra].at(index) = element;
}

void ValueTree::set_item(NodeId container, NodeId key, NodeId value) {
  auto& items = nodes_->items_to_change(container);
  items.push_back(key);
  items.push_back(value);
}

void ValueTree::put(NodeId container, std::string_view key, NodeId value) {
  auto& items = nodes_->items_to_change(container);
  const size_t position = nodes_->find_key(items, key);
  if (position == items.size()) return set_item(container, str(key), value);
  items[position + 1] = value;
}

bool ValueTree::erase(NodeId container, std::string_view key) {
  auto& items = nodes_->items_to_change(container);
  const size_t position = nodes_->find_key(items, key);
  if (position == items.size()) return false;
  items.erase(items.begin() + static_cast<ptrdiff_t>(position),
              items.begin() + static_cast<ptrdiff_t>(position) + 2);
  return true;
}

void ValueTree::set_state(NodeId object, NodeId state) {
  nodes_->object(object);
  auto& parts = nodes_->objects[(*nodes_)[object].extra];
  if (parts.state != kNoNode) {
    throw Error(ErrorCode::Unsupported, {}, "an object whose state is set twice");
  }
  parts.state = state;
}

void ValueTree::set_persistent_id(NodeId persistent_id, NodeId id) {
  auto& node = nodes_->nodes[persistent_id];
  if (node.kind != Kind::PersistentId) wrong_kind("a persistent id", node.kind);
  node.extra = id;
}

NodeId ValueTree::copy(Value value) {
  const Nodes& source = *value.tree().nodes_;
  std::unordered_map<NodeId, NodeId> copies;
  std::vector<NodeId> order;
  const auto base = static_cast<NodeId>(nodes_->nodes.size());
  const auto find = [&](NodeId id) {  // breadth first; the i-th found becomes node base + i
    if (copies.emplace(id, base + static_cast<NodeId>(order.size())).second) order.push_back(id);
  };
  find(value.id());
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& [kind, extra, bits] = source[order[i]];
    if (kind == Kind::Global) {
      find(static_cast<NodeId>(bits >> 32));
      find(static_cast<NodeId>(bits));
    }
    for_each_child(value.tree().value(order[i]), [&](const Value& child) { find(child.id()); });
  }
  const auto mapped = [&](std::span<const NodeId> ids) {
    std::vector<NodeId> out(ids.begin(), ids.end());
    for (NodeId& id : out) id = copies.at(id);
    return out;
  };
  const auto mapped_one = [&](NodeId id) { return id == kNoNode ? kNoNode : copies.at(id); };
  for (const NodeId id : order) {
    const Nodes::Node node = source[id];
    switch (node.kind) {
      case Kind::BigInt:
      case Kind::Str:
      case Kind::Bytes:
      case Kind::ByteArray: nodes_->add_text(node.kind, std::string(source.text_of(id))); break;
      case Kind::Tuple:
      case Kind::FrozenSet: nodes_->add_pooled(node.kind, mapped(source.elements(id))); break;
      case Kind::List:
      case Kind::Set:
      case Kind::Dict: nodes_->add_list(node.kind, mapped(source.lists[node.extra])); break;
      case Kind::Global:
        global(mapped_one(static_cast<NodeId>(node.bits >> 32)),
               mapped_one(static_cast<NodeId>(node.bits)));
        break;
      case Kind::Object: {
        const Nodes::ObjectParts& from = source.objects[node.extra];
        nodes_->add_object({from.construction, mapped_one(from.callable), mapped_one(from.args),
                            mapped_one(from.kwargs), mapped_one(from.state), mapped(from.elements),
                            mapped(from.items)});
        break;
      }
      case Kind::PersistentId: persistent_id(mapped_one(node.extra)); break;
      default: nodes_->add(node.kind, 0, node.bits);
    }
  }
  return base;
}

}  // namespace ckpt
