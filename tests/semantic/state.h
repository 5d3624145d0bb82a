#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/box.h>
#include <ckpt/dtype.h>

// A state dict as Python would hold it: what is known before any of our code has seen it.
namespace semantic {

struct Node;
using NodePtr = std::shared_ptr<const Node>;

// Bytes that several tensors may view.
struct Storage {
  ckpt::DType dtype = ckpt::DType::Float32;
  std::string bytes;
};

struct TensorNode {
  std::shared_ptr<const Storage> storage;
  uint64_t offset = 0;  // elements
  ckpt::Extents shape, strides;
  bool requires_grad = false;
  bool is_parameter = false;
  std::vector<std::pair<std::string, NodePtr>> attributes;
};

// `text` of a key is Python's str() of it.
struct Key {
  NodePtr node;
  std::string text;
};

struct Node {
  enum class Kind : uint8_t {
    None,
    Bool,
    Int,
    Float,
    Text,
    Dict,
    OrderedDict,
    DefaultDict,
    List,
    Tuple,
    Namespace,  // argparse.Namespace, whose attributes are the items
    Tensor,
  };
  Kind kind = Kind::None;
  int64_t integer = 0;  // Int, Bool
  double number = 0;
  std::string text;
  std::vector<std::pair<Key, NodePtr>> items;  // of mappings
  bool items_as_arguments =
      false;  // OrderedDict([[key, value], ...]) instead of items set one by one
  std::vector<NodePtr> elements;
  std::vector<std::pair<std::string, NodePtr>> attributes;  // of an OrderedDict
  TensorNode tensor;

  bool is_mapping() const {
    return kind == Kind::Dict || kind == Kind::OrderedDict || kind == Kind::DefaultDict;
  }
};

// What DCP enters: lists with a tensor, a mapping or such a list.
inline bool is_entered(const Node& list) {
  for (const NodePtr& element : list.elements) {
    if (element->kind == Node::Kind::Tensor || element->is_mapping()) return true;
    if (element->kind == Node::Kind::List && is_entered(*element)) return true;
  }
  return false;
}

// The row-major bytes that a tensor shows of its storage, element by element.
inline std::string content_of(const TensorNode& tensor) {
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.storage->dtype);
  std::string content;
  for (uint64_t i = 0; i < ckpt::element_count(tensor.shape); ++i) {
    uint64_t at = tensor.offset, rest = i;
    for (size_t d = tensor.shape.size(); d-- > 0; rest /= tensor.shape[d]) {
      at += rest % tensor.shape[d] * tensor.strides[d];
    }
    content.append(tensor.storage->bytes, at * element_bytes, element_bytes);
  }
  return content;
}

}  // namespace semantic
