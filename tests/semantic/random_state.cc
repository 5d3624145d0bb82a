#include "semantic/random_state.h"

namespace semantic {
namespace {

using test::Random;

constexpr size_t kDepth = 4;
constexpr ckpt::DType kTypes[] = {
    ckpt::DType::Float32, ckpt::DType::BFloat16,  ckpt::DType::Float16,      ckpt::DType::Float64,
    ckpt::DType::Int64,   ckpt::DType::UInt8,     ckpt::DType::Bool,         ckpt::DType::UInt16,
    ckpt::DType::Int8,    ckpt::DType::Complex64, ckpt::DType::Float8E4M3FN, ckpt::DType::Complex32,
};
constexpr const char* kTextKeys[] = {
    "a",   "b",        "weight",    "a.b", "",   "/",      "~", "~1",   "0",        "1",
    "a/b", "\x1b[31m", "new\nline", "..",  "@x", "w:FILE", "*", "None", "\xd0\xba", "x x"};

class StateMaker {
 public:
  explicit StateMaker(Random& random) : random_(random) {}

  NodePtr make() {
    Node root;
    root.kind = one_in(8) ? Node::Kind::OrderedDict : Node::Kind::Dict;
    for (size_t i = 0, count = 1 + random_() % 4; i < count; ++i) {
      root.items.emplace_back(text_key("root" + std::to_string(i)), value(kDepth));
    }
    return std::make_shared<const Node>(std::move(root));
  }

 private:
  bool one_in(unsigned count) { return random_() % count == 0; }

  NodePtr value(size_t depth) {
    if (!containers_.empty() && one_in(16)) return containers_[random_() % containers_.size()];
    if (depth == 0 || one_in(3)) return one_in(3) ? leaf() : tensor();
    NodePtr made;
    switch (random_() % 8) {
      case 0: return sequence(Node::Kind::Tuple, depth);
      case 1: return name_space(depth);
      case 2:
      case 3: made = sequence(Node::Kind::List, depth); break;
      default: made = mapping(depth);
    }
    containers_.push_back(made);
    return made;
  }

  size_t size() {
    constexpr size_t kSizes[] = {0, 1, 1, 2, 3};
    return kSizes[random_() % std::size(kSizes)];
  }

  NodePtr leaf() {
    Node node;
    switch (random_() % 6) {
      case 0: break;
      case 1:
        node.kind = Node::Kind::Bool;
        node.integer = static_cast<int64_t>(random_() % 2);
        break;
      case 2:
        node.kind = Node::Kind::Int;
        node.integer = static_cast<int32_t>(random_());
        break;
      case 3:
        node.kind = Node::Kind::Float;
        node.number = static_cast<int32_t>(random_()) / 1024.0;
        break;
      case 4:
        node.kind = Node::Kind::Text;
        node.text = kTextKeys[random_() % std::size(kTextKeys)];
        break;
      default: node.kind = one_in(2) ? Node::Kind::List : Node::Kind::Tuple;
    }
    return std::make_shared<const Node>(std::move(node));
  }

  NodePtr mapping(size_t depth) {
    constexpr Node::Kind kKinds[] = {Node::Kind::Dict, Node::Kind::Dict, Node::Kind::OrderedDict,
                                     Node::Kind::DefaultDict};
    Node node;
    node.kind = kKinds[random_() % std::size(kKinds)];
    for (size_t count = size(); count > 0; --count) {
      Key next = key();
      if (!has_key(node, next)) node.items.emplace_back(std::move(next), value(depth - 1));
    }
    node.items_as_arguments = node.kind != Node::Kind::Dict && !node.items.empty() && one_in(6);
    if (node.kind == Node::Kind::OrderedDict && one_in(4)) {
      node.attributes.emplace_back("_metadata",
                                   one_in(2) ? leaf() : sequence(Node::Kind::Tuple, 1));
    }
    return std::make_shared<const Node>(std::move(node));
  }

  // Also one that is equal in Python: {1: ..., True: ...} has one key.
  static bool has_key(const Node& mapping, const Key& wanted) {
    const auto is_one = [](const Key& key) {
      const Node::Kind kind = key.node->kind;
      return (kind == Node::Kind::Int || kind == Node::Kind::Bool) && key.node->integer == 1;
    };
    for (const auto& [key, value] : mapping.items) {
      if (key.text == wanted.text || (is_one(key) && is_one(wanted))) return true;
    }
    return false;
  }

  NodePtr sequence(Node::Kind kind, size_t depth) {
    Node node;
    node.kind = kind;
    for (size_t count = size(); count > 0; --count) node.elements.push_back(value(depth - 1));
    return std::make_shared<const Node>(std::move(node));
  }

  NodePtr name_space(size_t depth) {
    Node node;
    node.kind = Node::Kind::Namespace;
    for (size_t i = 0, count = size(); i < count; ++i) {
      node.attributes.emplace_back("k" + std::to_string(i), value(depth - 1));
    }
    return std::make_shared<const Node>(std::move(node));
  }

  static Key text_key(std::string text) {
    Node node;
    node.kind = Node::Kind::Text;
    node.text = text;
    return {std::make_shared<const Node>(std::move(node)), std::move(text)};
  }

  Key key() {
    if (!one_in(6)) return text_key(kTextKeys[random_() % std::size(kTextKeys)]);
    Node node;
    std::string text;
    switch (random_() % 4) {
      case 0: text = "None"; break;
      case 1:
        node.kind = Node::Kind::Bool;
        node.integer = 1;
        text = "True";
        break;
      case 2:
        node.kind = Node::Kind::Float;
        node.number = 1.5;
        text = "1.5";
        break;
      default:
        node.kind = Node::Kind::Int;
        node.integer = static_cast<int64_t>(random_() % 4) - 1;
        text = std::to_string(node.integer);
    }
    return {std::make_shared<const Node>(std::move(node)), text};
  }

  NodePtr tensor() {
    Node node;
    node.kind = Node::Kind::Tensor;
    TensorNode& tensor = node.tensor;
    tensor.storage = storage();
    choose_view(tensor);
    const ckpt::DType dtype = tensor.storage->dtype;
    if ((dtype == ckpt::DType::Float32 || dtype == ckpt::DType::BFloat16) && one_in(8)) {
      tensor.is_parameter = one_in(2);
      tensor.requires_grad = !tensor.is_parameter || one_in(2);
    }
    if (one_in(16)) tensor.attributes.emplace_back("partition_dim", leaf());
    return std::make_shared<const Node>(std::move(node));
  }

  std::shared_ptr<const Storage> storage() {
    if (!storages_.empty() && one_in(3)) return storages_[random_() % storages_.size()];
    constexpr uint64_t kCounts[] = {0, 1, 2, 7, 16, 33, 100};
    Storage made;
    made.dtype = kTypes[random_() % std::size(kTypes)];
    const uint64_t count = kCounts[random_() % std::size(kCounts)];
    made.bytes = test::random_bytes(random_, count * ckpt::bytes_per_element(made.dtype));
    storages_.push_back(std::make_shared<const Storage>(std::move(made)));
    return storages_.back();
  }

  // A box of the storage in any order of dimensions, some repeated (stride 0); the whole of it for
  // one in two.
  void choose_view(TensorNode& tensor) {
    const uint64_t count =
        tensor.storage->bytes.size() / ckpt::bytes_per_element(tensor.storage->dtype);
    tensor.shape = {count};
    tensor.strides = {1};
    if (count < 2 || one_in(2)) return;
    tensor.offset = random_() % 2 * (random_() % count);
    uint64_t left = count - tensor.offset, stride = 1;
    tensor.shape.clear();
    tensor.strides.clear();
    for (size_t d = random_() % 4; d > 0; --d) {
      const bool repeats = one_in(8);
      const uint64_t size = 1 + random_() % (repeats ? 3 : std::min<uint64_t>(left, 5));
      tensor.shape.push_back(size);
      tensor.strides.push_back(repeats ? 0 : stride);
      if (repeats) continue;
      stride *= size;
      left = std::max<uint64_t>(1, left / size);
    }
    if (one_in(2)) {
      std::ranges::reverse(tensor.shape);
      std::ranges::reverse(tensor.strides);
    }
  }

  Random& random_;
  std::vector<std::shared_ptr<const Storage>> storages_;
  std::vector<NodePtr> containers_;
};

}  // namespace

NodePtr random_state(test::Random& random) { return StateMaker(random).make(); }

}  // namespace semantic
