#include <ckpt/value.h>

#include <bit>

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

}  // namespace ckpt
