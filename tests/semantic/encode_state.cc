#include "semantic/encode_state.h"

#include <algorithm>
#include <bit>

#include "codec/hash_functions.h"

namespace semantic {
namespace {

std::string number(uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

std::string text(std::string_view content) { return number(content.size()) + std::string(content); }

std::string raw(const ckpt::Sha256& digest) { return {digest.bytes.begin(), digest.bytes.end()}; }

std::string content_encoding(const Node& node);

std::string encoding(const Node& node) {
  switch (node.kind) {
    case Node::Kind::None: return "N";
    case Node::Kind::Bool: return node.integer != 0 ? "T" : "F";
    case Node::Kind::Int: return "I" + text(std::to_string(node.integer));
    case Node::Kind::Float: return "D" + number(std::bit_cast<uint64_t>(node.number));
    case Node::Kind::Text: return "S" + text(node.text);
    default: return "H" + raw(sha256_of(content_encoding(node)));
  }
}

std::string hashed(const std::string& content) { return "H" + raw(sha256_of(content)); }
std::string global(std::string_view module, std::string_view name) {
  return "G" + text(module) + text(name);
}

std::string pairs_of(const Node& node) {
  std::string encoded = number(node.items.size());
  for (const auto& [key, value] : node.items) encoded += encoding(*key.node) + encoding(*value);
  return encoded;
}

std::string sorted_dict(std::vector<std::pair<std::string, std::string>> pairs) {
  std::ranges::sort(pairs);
  std::string encoded = "d" + number(pairs.size());
  for (const auto& [key, value] : pairs) encoded += key + value;
  return encoded;
}

std::string attributes_dict(const std::vector<std::pair<std::string, NodePtr>>& attributes) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [name, value] : attributes)
    pairs.emplace_back("S" + text(name), encoding(*value));
  return hashed(sorted_dict(std::move(pairs)));
}

std::string optional_attributes(const std::vector<std::pair<std::string, NodePtr>>& attributes) {
  return attributes.empty() ? "0" : "1" + attributes_dict(attributes);
}

std::string elements_of(const Node& node, char mark) {
  std::string encoded = mark + number(node.elements.size());
  for (const NodePtr& element : node.elements) encoded += encoding(*element);
  return encoded;
}

std::string tensor_content(const TensorNode& tensor) {
  std::string encoded = "v" + text(name(tensor.storage->dtype)) + number(tensor.shape.size());
  for (const uint64_t size : tensor.shape) encoded += number(size);
  encoded += raw(sha256_of(content_of(tensor)));
  return encoded + (tensor.requires_grad ? "T" : "F") + optional_attributes(tensor.attributes);
}

// An object: callable, arguments, no keyword arguments, appended elements, pairs, state.
std::string object_content(const std::string& callable, const std::string& args,
                           const std::string& pairs, const std::string& state) {
  return "o" + callable + hashed(args) + "0" + "l" + number(0) + pairs + state;
}

// The same however the pickle gives the items: Python puts those of an argument in, too.
std::string mapping_object(const Node& node) {
  const bool ordered = node.kind == Node::Kind::OrderedDict;
  const std::string args = ordered ? "t" + number(0) : "t" + number(1) + global("builtins", "list");
  return object_content(global("collections", ordered ? "OrderedDict" : "defaultdict"), args,
                        pairs_of(node), optional_attributes(node.attributes));
}

std::string content_encoding(const Node& node) {
  switch (node.kind) {
    case Node::Kind::List: return elements_of(node, 'l');
    case Node::Kind::Tuple: return elements_of(node, 't');
    case Node::Kind::Tensor: return tensor_content(node.tensor);
    case Node::Kind::Namespace:
      return object_content(global("argparse", "Namespace"), "t" + number(0), number(0),
                            "1" + attributes_dict(node.attributes));
    case Node::Kind::Dict: {
      std::vector<std::pair<std::string, std::string>> pairs;
      for (const auto& [key, value] : node.items) {
        pairs.emplace_back(encoding(*key.node), encoding(*value));
      }
      return sorted_dict(std::move(pairs));
    }
    default: return mapping_object(node);
  }
}

}  // namespace

ckpt::Sha256 sha256_of(std::string_view bytes) {
  ckpt::Sha256Stream stream;
  stream.update(bytes);
  return stream.finish();
}

ckpt::Sha256 encoding_digest(const Node& node) { return sha256_of(encoding(node)); }

}  // namespace semantic
