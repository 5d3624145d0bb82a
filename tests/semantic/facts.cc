#include "semantic/facts.h"

#include <algorithm>

#include <ckpt/inventory.h>

#include "digest/canonical_encoding.h"
#include "format/torch/torch_save.h"
#include "format/values/nesting.h"
#include "semantic/encode_state.h"

namespace semantic {
namespace {

using ckpt::Value;

// --- of what was generated

class GeneratedFacts {
 public:
  Facts run(const Node& root) {
    visit(root);
    return std::move(facts_);
  }

 private:
  void state(Aspect aspect, std::string fact) { facts_[{place_, aspect}] = std::move(fact); }

  void visit(const Node& node) {
    if (node.is_mapping()) {
      visit_mapping(node);
    } else if (node.kind == Node::Kind::Tensor) {
      visit_tensor(node.tensor);
    } else if (node.kind == Node::Kind::List && is_entered(node)) {
      for (size_t i = 0; i < node.elements.size(); ++i) {
        enter(std::to_string(i), *node.elements[i]);
      }
    } else {
      state(Aspect::Value, object_fact(encoding_digest(node)));
    }
  }

  void enter(std::string step, const Node& node) {
    place_.push_back(std::move(step));
    visit(node);
    place_.pop_back();
  }

  void visit_mapping(const Node& node) {
    if (node.items.empty()) state(Aspect::Value, kEmptyMapping);
    if (node.kind == Node::Kind::OrderedDict) state(Aspect::Type, "OrderedDict");
    if (node.kind == Node::Kind::DefaultDict) state(Aspect::Type, "defaultdict");
    visit_attributes(node.attributes);
    for (const auto& [key, value] : node.items) {
      place_.push_back(key.text);
      if (key.node->kind != Node::Kind::Text) {
        state(Aspect::KeyType, hex(encoding_digest(*key.node)));
      }
      visit(*value);
      place_.pop_back();
    }
  }

  void visit_tensor(const TensorNode& tensor) {
    state(Aspect::Value,
          tensor_fact(tensor.storage->dtype, tensor.shape, sha256_of(content_of(tensor))));
    if (tensor.requires_grad) state(Aspect::RequiresGrad, "true");
    visit_attributes(tensor.attributes);
  }

  void visit_attributes(const std::vector<std::pair<std::string, NodePtr>>& attributes) {
    for (const auto& [name, value] : attributes) {
      place_.push_back("@" + name);
      state(Aspect::Value, object_fact(encoding_digest(*value)));
      place_.pop_back();
    }
  }

  Place place_;
  Facts facts_;
};

// --- of a torch.save file

class DocumentFacts {
 public:
  DocumentFacts(const ckpt::Checkpoint& checkpoint, const ckpt::Document& document,
                const std::string& file, const EntersList& enters_list)
      : checkpoint_(checkpoint),
        document_(document),
        file_(file),
        enters_list_(enters_list),
        encoder_(document.tree, [this](ckpt::NodeId id) { return payload_digest(id); }) {}

  Facts run() {
    visit(document_.tree.root());
    return std::move(facts_);
  }

 private:
  void state(Aspect aspect, std::string fact) { facts_[{place_, aspect}] = std::move(fact); }

  void visit(const Value& value) {
    if (const auto view = as_tensor(value)) return visit_tensor(value, *view);
    if (value.is(ckpt::Kind::Dict)) return visit_items(value);
    if (is_mapping_object(value)) return visit_mapping_object(value);
    if (value.is(ckpt::Kind::List) && value.size() > 0 && enters_list_(place_)) {
      for (size_t i = 0; i < value.size(); ++i) enter(std::to_string(i), value[i]);
      return;
    }
    state(Aspect::Value, object_fact(encoder_.digest(value.id())));
  }

  void enter(std::string step, const Value& value) {
    place_.push_back(std::move(step));
    visit(value);
    place_.pop_back();
  }

  static bool is_mapping_object(const Value& value) {
    return value.is(ckpt::Kind::Object) &&
           (value.callable().is_global("collections", "OrderedDict") ||
            value.callable().is_global("collections", "defaultdict"));
  }

  void visit_mapping_object(const Value& value) {
    state(Aspect::Type, std::string(value.callable().name()));
    visit_items(value);
    if (value.state()) visit_attributes(*value.state());
  }

  void visit_items(const Value& mapping) {
    if (mapping.item_count() == 0) state(Aspect::Value, kEmptyMapping);
    for (const auto& [key, value] : ckpt::items_of(mapping)) {
      visit_item(key, value);
    }
  }

  void visit_item(const Value& key, const Value& value) {
    place_.push_back(ckpt::key_text(key));
    if (!key.is(ckpt::Kind::Str)) state(Aspect::KeyType, hex(encoder_.digest(key.id())));
    visit(value);
    place_.pop_back();
  }

  void visit_tensor(const Value& value, const ckpt::TensorView& view) {
    state(Aspect::Value, tensor_fact(view.dtype, view.shape, payload_digest(value.id())));
    if (view.requires_grad) state(Aspect::RequiresGrad, "true");
    if (view.attributes) visit_attributes(document_.tree.value(*view.attributes));
  }

  void visit_attributes(const Value& attributes) {
    if (!attributes.is(ckpt::Kind::Dict)) return;
    for (const auto& [name, value] : ckpt::items_of(attributes)) {
      place_.push_back("@" + ckpt::key_text(name));
      state(Aspect::Value, object_fact(encoder_.digest(value.id())));
      place_.pop_back();
    }
  }

  ckpt::Sha256 payload_digest(ckpt::NodeId id) const {
    const ckpt::TensorAt tensor{{}, id, *as_tensor(document_.tree.value(id))};
    const ckpt::TensorEntry entry = make_tensor_entry(document_, tensor, file_);
    std::string bytes(count_bytes(entry), '\0');
    checkpoint_.read(entry, ckpt::whole(entry.shape), std::as_writable_bytes(std::span(bytes)));
    return sha256_of(bytes);
  }

  const ckpt::Checkpoint& checkpoint_;
  const ckpt::Document& document_;
  const std::string& file_;
  const EntersList& enters_list_;
  ckpt::CanonicalEncoder encoder_;
  Place place_;
  Facts facts_;
};

bool has_facts_below(const Facts& facts, const Place& place) {
  const auto next = facts.upper_bound({place, Aspect::RequiresGrad});
  return next != facts.end() && next->first.first.size() > place.size() &&
         std::equal(place.begin(), place.end(), next->first.first.begin());
}

// --- of a DCP folder

Place place_of(std::string_view pointer) {
  Place place;
  for (size_t at = 1; at <= pointer.size();) {
    const size_t end = std::min(pointer.find('/', at), pointer.size());
    std::string step;
    for (size_t i = at; i < end; ++i) {
      const bool escape = pointer[i] == '~' && i + 1 < end;
      step += !escape ? pointer[i] : pointer[++i] == '1' ? '/' : '~';
    }
    place.push_back(std::move(step));
    at = end + 1;
  }
  return place;
}

}  // namespace

Facts facts_of(const Node& root) { return GeneratedFacts().run(root); }

Facts facts_of(const ckpt::Checkpoint& checkpoint, const Facts& expected) {
  const std::string& file = checkpoint.catalog().files.at(0).path;
  return facts_of(checkpoint, *checkpoint.document(file), file,
                  [&](const Place& place) { return has_facts_below(expected, place); });
}

Facts facts_of(const ckpt::Checkpoint& checkpoint, const ckpt::Document& document,
               const std::string& file, const EntersList& enters_list) {
  return DocumentFacts(checkpoint, document, file, enters_list).run();
}

Facts facts_of_store(const ckpt::Checkpoint& checkpoint) {
  ckpt::ExecuteOptions options;
  options.threads = 1;
  const ckpt::Inventory inventory = plain_inventory(checkpoint, ckpt::KeyTypes::AsText);
  const ckpt::Hashes hashes = hash(inventory, checkpoint, options);
  Facts facts;
  for (const ckpt::TensorHash& tensor : hashes.tensors) {
    facts[{place_of(tensor.key), Aspect::Value}] =
        tensor_fact(tensor.dtype, tensor.shape, tensor.sha256);
  }
  for (const ckpt::ObjectHash& object : hashes.objects) {
    facts[{place_of(object.key), Aspect::Value}] = object_fact(object.sha256);
  }
  return facts;
}

std::string tensor_fact(ckpt::DType dtype, const ckpt::Extents& shape, const ckpt::Sha256& sha256) {
  std::string fact = "tensor " + std::string(name(dtype)) + " [";
  for (const uint64_t size : shape) fact += std::to_string(size) + " ";
  return fact + "] " + hex(sha256);
}

std::string object_fact(const ckpt::Sha256& encoding) { return "object " + hex(encoding); }

std::string pointer(const Place& place) {
  std::string text;
  for (const std::string& step : place) text += ckpt::pointer_step(step);
  return text.empty() ? "/" : text;
}

std::string dotted(const Place& place) {
  std::string text;
  for (size_t i = 0; i < place.size(); ++i) text += (i ? "." : "") + place[i];
  return text;
}

}  // namespace semantic
