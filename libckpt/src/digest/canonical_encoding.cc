// Grammar (docs/formats/canonical_encoding.md; numbers are u64 little-endian, TEXT = length bytes):
//   value     = leaf | 'H' sha256(content) | 'R' levels-up
//   leaf      = 'N' | 'T' | 'F' | 'I' TEXT | 'D' float64 | 'S' TEXT | 'B' TEXT | 'A' TEXT
//             | 'G' TEXT TEXT | 'P' bytes sha256
//   content   = 'l' list | 't' tuple | 'd' dict | 's' set | 'z' frozenset | 'o' object | 'v' tensor
#include "digest/canonical_encoding.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <ckpt/document.h>

#include "base/text.h"
#include "codec/python_values.h"
#include "codec/value_nodes.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

constexpr uint32_t kOpenMark = 0x80000000;

void put_number(std::string& out, uint64_t number) { append_little_endian(out, number); }

void put_text(std::string& out, std::string_view text) {
  put_number(out, text.size());
  out += text;
}

void put_digest(std::string& out, const Sha256& digest) {
  out.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

bool is_container(const Value& value) {
  switch (value.kind()) {
    case Kind::List:
    case Kind::Tuple:
    case Kind::Dict:
    case Kind::Set:
    case Kind::FrozenSet: return true;
    case Kind::Object: return !signal_number(value);
    default: return false;
  }
}

// The values that a container's content names. A tensor names only its attributes: the storage is
// represented by its bytes.
std::vector<NodeId> children_of(const Value& value) {
  std::vector<NodeId> children;
  if (const auto tensor = value.is(Kind::Object) ? as_tensor(value) : std::nullopt) {
    if (tensor->attributes) children.push_back(*tensor->attributes);
  } else {
    for_each_child(value, [&](const Value& child) { children.push_back(child.id()); });
  }
  return children;
}

// Builds the content of one container; `encoder` gives the encoding of a child.
class Content {
 public:
  explicit Content(const CanonicalEncoder& encoder) : encoder_(encoder) {}

  std::string of(const Value& value, const std::function<Sha256(NodeId)>& payload_digest) {
    switch (value.kind()) {
      case Kind::List: put_elements('l', value); break;
      case Kind::Tuple: put_elements('t', value); break;
      case Kind::Set: put_sorted_elements('s', value); break;
      case Kind::FrozenSet: put_sorted_elements('z', value); break;
      case Kind::Dict: put_sorted_items(value); break;
      default:
        if (const auto tensor = as_tensor(value))
          put_tensor(*tensor, payload_digest(value.id()));
        else
          put_object(value);
    }
    return std::move(out_);
  }

 private:
  void put_elements(char tag, const Value& value) {
    out_ += tag;
    put_number(out_, value.size());
    for (size_t i = 0; i < value.size(); ++i) out_ += encoding_of(value[i].id());
  }

  void put_sorted_elements(char tag, const Value& value) {
    std::vector<std::string> encodings;
    for (size_t i = 0; i < value.size(); ++i) encodings.push_back(encoding_of(value[i].id()));
    std::ranges::sort(encodings);
    out_ += tag;
    put_number(out_, encodings.size());
    for (const std::string& encoding : encodings) out_ += encoding;
  }

  // As Python compares dicts: order means nothing.
  void put_sorted_items(const Value& value) {
    std::vector<std::pair<std::string, NodeId>> items;
    for (const auto& [key, item] : items_of(value)) {
      items.emplace_back(encoding_of(key.id()), item.id());
    }
    std::ranges::stable_sort(items, {}, &std::pair<std::string, NodeId>::first);
    out_ += 'd';
    put_number(out_, items.size());
    for (const auto& [key, item] : items) out_ += key + encoding_of(item);
  }

  void put_optional(const std::optional<Value>& value) {
    out_ += value ? '1' : '0';
    if (value) out_ += encoding_of(value->id());
  }

  void put_object(const Value& value) {
    out_ += 'o';
    out_ += encoding_of(value.callable().id()) + encoding_of(value.args().id());
    put_optional(value.kwargs());
    put_elements('l', value);
    put_number(out_, value.item_count());
    for (const auto& [key, item] : items_of(value)) {  // an OrderedDict's order means something
      out_ += encoding_of(key.id()) + encoding_of(item.id());
    }
    put_optional(value.state());
  }

  void put_tensor(const TensorView& tensor, const Sha256& payload) {
    out_ += 'v';
    put_text(out_, name(tensor.dtype));
    put_number(out_, tensor.shape.size());
    for (const uint64_t size : tensor.shape) put_number(out_, size);
    put_digest(out_, payload);
    out_ += tensor.requires_grad ? 'T' : 'F';
    out_ += tensor.attributes ? '1' : '0';
    if (tensor.attributes) out_ += encoding_of(*tensor.attributes);
    if (tensor.subclass) out_ += encoding_of(*tensor.subclass);
  }

  std::string encoding_of(NodeId id) const { return encoder_.encoding(id); }

  const CanonicalEncoder& encoder_;
  std::string out_;
};

std::string tagged(std::string tag, std::string_view text) {
  put_text(tag, text);
  return tag;
}

std::string encoding_by_digest(const std::string& content) {
  std::string out = "H";
  put_digest(out, sha256(content));
  return out;
}

// However it is pickled: as the object signal.Signals(number).
std::string signal_encoding(int64_t number) {
  std::string args = "t", content = "oG";
  put_number(args, 1);
  args += tagged("I", std::to_string(number));
  put_text(content, "signal");
  put_text(content, "Signals");
  content += encoding_by_digest(args) + "0l";
  put_number(content, 0);  // elements
  put_number(content, 0);  // pairs
  return encoding_by_digest(content + "0");
}

std::string leaf_encoding(const Value& value, const std::function<Sha256(NodeId)>& payload_digest) {
  std::string out;
  if (const auto number = signal_number(value)) return signal_encoding(*number);
  switch (value.kind()) {
    case Kind::None: return "N";
    case Kind::Bool: return value.as_bool() ? "T" : "F";
    case Kind::Int: return tagged("I", std::to_string(value.as_int()));
    case Kind::BigInt: return tagged("I", value.text());
    case Kind::Str: return tagged("S", value.text());
    case Kind::Bytes: return tagged("B", value.text());
    case Kind::Float:
      out = "D";
      put_number(out, std::bit_cast<uint64_t>(value.as_float()));
      return out;
    case Kind::Global:
      out = tagged("G", value.module());
      put_text(out, value.name());
      return out;
    case Kind::PersistentId: {
      const StorageId storage = as_storage_id(value);
      out = "P";
      put_number(out, storage.count * (storage.dtype ? bytes_per_element(*storage.dtype) : 1));
      put_digest(out, payload_digest(value.id()));
      return out;
    }
    default: return tagged("A", value.text());  // ByteArray
  }
}

}  // namespace

CanonicalEncoder::CanonicalEncoder(const ValueTree& tree, PayloadDigest payload_digest)
    : tree_(tree), payload_digest_(std::move(payload_digest)), mark_(tree.node_count(), 0) {}

Sha256 CanonicalEncoder::digest(NodeId root) {
  forget_cycles();
  enter(root);
  while (!open_.empty()) {
    OpenNode& node = open_.back();
    if (node.next < node.children.size()) {
      enter(node.children[node.next++]);
    } else {
      finish(node.id);
    }
  }
  stream_.update(encoding(root));
  return stream_.finish();
}

// A value that contains itself is encoded as seen from where it was entered first: from another
// root it must be entered anew.
void CanonicalEncoder::forget_cycles() {
  if (!has_cycle_) return;
  for (const NodeId id : finished_) mark_[id] = 0;
  finished_.clear();
  digests_.clear();
  has_cycle_ = false;
}

void CanonicalEncoder::enter(NodeId id) {
  if (mark_[id] != 0) {
    has_cycle_ = has_cycle_ || (mark_[id] & kOpenMark) != 0;
    return;
  }
  const Value value = tree_.value(id);
  if (!is_container(value)) return;
  mark_[id] = kOpenMark | static_cast<uint32_t>(open_.size());
  open_.push_back({id, children_of(value)});
}

void CanonicalEncoder::finish(NodeId id) {
  stream_.update(Content(*this).of(tree_.value(id), payload_digest_));
  digests_.push_back(stream_.finish());
  finished_.push_back(id);
  mark_[id] = static_cast<uint32_t>(digests_.size());
  open_.pop_back();
}

std::string CanonicalEncoder::encoding(NodeId id) const {
  const Value value = tree_.value(id);
  if (!is_container(value)) return leaf_encoding(value, payload_digest_);
  std::string out;
  if ((mark_[id] & kOpenMark) != 0) {
    out = "R";
    put_number(out, open_.size() - 1 - (mark_[id] & ~kOpenMark));
  } else {
    out = "H";
    put_digest(out, digests_.at(mark_[id] - 1));
  }
  return out;
}

PayloadSearch::PayloadSearch(const ValueTree& tree)
    : tree_(tree), seen_(tree.node_count(), false) {}

std::vector<NodeId> PayloadSearch::unseen_below(NodeId root) {
  std::vector<NodeId> found;
  std::vector<NodeId> open = {root};
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    if (seen_[id]) continue;
    seen_[id] = true;
    const Value value = tree_.value(id);
    const bool is_tensor = value.is(Kind::Object) && as_tensor(value);
    if (is_tensor || value.is(Kind::PersistentId)) found.push_back(id);
    if (!is_container(value)) continue;
    const std::vector<NodeId> children = children_of(value);
    open.insert(open.end(), children.begin(), children.end());
  }
  return found;
}

}  // namespace ckpt
