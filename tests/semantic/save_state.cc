#include "semantic/save_state.h"

#include <map>

#include <ckpt/convert.h>
#include <ckpt/value_tree.h>
#include <ckpt/write_target.h>

#include "format/values/torch_values.h"
#include "support/memory_payloads.h"

namespace semantic {
namespace {

using ckpt::Construction;
using ckpt::NodeId;
using ckpt::ValueTree;

class StateWriter {
 public:
  NodeId add(const NodePtr& node) {
    const auto known = written_.find(node.get());
    if (known != written_.end()) return known->second;
    const NodeId id = add_new(*node);
    written_.emplace(node.get(), id);
    return id;
  }

  ckpt::TargetArchive finish(NodeId root) {
    tree_->set_root(root);
    return {"archive", std::move(tree_), std::move(records_)};
  }

 private:
  NodeId add_new(const Node& node) {
    switch (node.kind) {
      case Node::Kind::None: return tree().none();
      case Node::Kind::Bool: return tree().boolean(node.integer != 0);
      case Node::Kind::Int: return tree().integer(node.integer);
      case Node::Kind::Float: return tree().real(node.number);
      case Node::Kind::Text: return tree().str(node.text);
      case Node::Kind::List: return add_sequence(ckpt::Kind::List, node);
      case Node::Kind::Tuple: return add_sequence(ckpt::Kind::Tuple, node);
      case Node::Kind::Namespace: return add_namespace(node);
      case Node::Kind::Tensor: return add_tensor(node.tensor);
      default: return add_mapping(node);
    }
  }

  NodeId add_sequence(ckpt::Kind kind, const Node& node) {
    std::vector<NodeId> elements;
    for (const NodePtr& element : node.elements) elements.push_back(add(element));
    return tree().sequence(kind, elements);
  }

  NodeId add_namespace(const Node& node) {
    const NodeId made =
        tree().object(Construction::NewObj, tree().global("argparse", "Namespace"), tree().tuple());
    tree().set_state(made, add_attributes(node.attributes));
    return made;
  }

  NodeId add_attributes(const std::vector<std::pair<std::string, NodePtr>>& attributes) {
    const NodeId made = tree().dict();
    for (const auto& [name, value] : attributes) {
      const NodeId id = add(value);
      tree().set_item(made, tree().str(name), id);
    }
    return made;
  }

  NodeId add_mapping(const Node& node) {
    std::vector<NodeId> args;
    if (node.kind == Node::Kind::DefaultDict) args.push_back(tree().global("builtins", "list"));
    if (node.items_as_arguments) args.push_back(add_pairs(node));
    const NodeId made = make_mapping(node.kind, args);
    for (const auto& [key, value] : node.items) {
      if (node.items_as_arguments) break;
      const NodeId key_id = add(key.node), value_id = add(value);
      tree().set_item(made, key_id, value_id);
    }
    if (!node.attributes.empty()) tree().set_state(made, add_attributes(node.attributes));
    return made;
  }

  NodeId make_mapping(Node::Kind kind, const std::vector<NodeId>& args) {
    if (kind == Node::Kind::Dict) return tree().dict();
    const char* name = kind == Node::Kind::OrderedDict ? "OrderedDict" : "defaultdict";
    return tree().object(Construction::Reduce, tree().global("collections", name),
                         tree().sequence(ckpt::Kind::Tuple, args));
  }

  NodeId add_pairs(const Node& node) {
    std::vector<NodeId> pairs;
    for (const auto& [key, value] : node.items) {
      const NodeId key_id = add(key.node), value_id = add(value);
      pairs.push_back(tree().list({key_id, value_id}));
    }
    return tree().sequence(ckpt::Kind::List, pairs);
  }

  NodeId add_tensor(const TensorNode& tensor) {
    const bool typed = !ckpt::storage_class_name(tensor.storage->dtype).empty();
    std::vector<NodeId> args = {add_storage(tensor.storage),
                                tree().integer(static_cast<int64_t>(tensor.offset)),
                                numbers(tensor.shape),
                                numbers(tensor.strides),
                                tree().boolean(tensor.requires_grad && !tensor.is_parameter),
                                ordered_dict()};
    if (!typed) args.push_back(tree().global("torch", ckpt::name(tensor.storage->dtype)));
    const NodeId function =
        tree().global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    const NodeId arguments = tree().sequence(ckpt::Kind::Tuple, args);
    if (!tensor.attributes.empty()) return add_with_attributes(tensor, function, arguments);
    const NodeId made = tree().object(Construction::Reduce, function, arguments);
    return tensor.is_parameter ? add_parameter(tensor, made) : made;
  }

  NodeId add_parameter(const TensorNode& tensor, NodeId data) {
    return tree().object(
        Construction::Reduce, tree().global("torch._utils", "_rebuild_parameter"),
        tree().tuple({data, tree().boolean(tensor.requires_grad), ordered_dict()}));
  }

  NodeId add_with_attributes(const TensorNode& tensor, NodeId function, NodeId arguments) {
    NodeId state = add_attributes(tensor.attributes);
    NodeId type = tree().global("torch", "Tensor");
    if (tensor.is_parameter) {
      const NodeId data = tree().object(Construction::Reduce, function, arguments);
      return tree().object(
          Construction::Reduce, tree().global("torch._utils", "_rebuild_parameter_with_state"),
          tree().tuple({data, tree().boolean(tensor.requires_grad), ordered_dict(), state}));
    }
    return tree().object(Construction::Reduce,
                         tree().global("torch._tensor", "_rebuild_from_type_v2"),
                         tree().tuple({function, type, arguments, state}));
  }

  NodeId add_storage(const std::shared_ptr<const Storage>& storage) {
    const auto known = storages_.find(storage.get());
    if (known != storages_.end()) return known->second;
    const std::string_view type = ckpt::storage_class_name(storage->dtype);
    const uint64_t unit_bytes = type.empty() ? 1 : ckpt::bytes_per_element(storage->dtype);
    const NodeId id = tree().persistent_id(
        tree().tuple({tree().str("storage"),
                      type.empty() ? tree().global("torch.storage", "UntypedStorage")
                                   : tree().global("torch", type),
                      tree().str(std::to_string(records_.size())), tree().str("cpu"),
                      tree().integer(static_cast<int64_t>(storage->bytes.size() / unit_bytes))}));
    records_.push_back({storage->bytes.size(), storage->bytes});
    storages_.emplace(storage.get(), id);
    return id;
  }

  NodeId numbers(const ckpt::Extents& extents) {
    std::vector<NodeId> ids;
    for (const uint64_t n : extents) ids.push_back(tree().integer(static_cast<int64_t>(n)));
    return tree().sequence(ckpt::Kind::Tuple, ids);
  }

  NodeId ordered_dict() { return ckpt::add_ordered_dict(tree()); }
  ValueTree& tree() { return *tree_; }

  std::shared_ptr<ValueTree> tree_ = std::make_shared<ValueTree>();
  std::vector<ckpt::TargetRecord> records_;
  std::map<const Node*, NodeId> written_;
  std::map<const Storage*, NodeId> storages_;
};

}  // namespace

void save_state(const NodePtr& root, const std::filesystem::path& path) {
  StateWriter writer;
  const NodeId id = writer.add(root);
  ckpt::Target target;
  target.files.push_back({"", {writer.finish(id)}, {}});
  const test::MemoryPayloads nothing_to_read;
  ckpt::ConvertOptions options;
  options.execute.threads = 1;
  ckpt::write_target(std::move(target), {nothing_to_read, {}}, path, options);
}

}  // namespace semantic
