#include "digest/object_digests.h"

#include <ckpt/error.h>

#include "format/torch/torch_save.h"
#include "format/values/torch_types.h"

namespace ckpt {
namespace {

// The bytes of a storage that belongs to no tensor, as a tensor of uint8.
TensorEntry entry_of_storage(const Document& document, const Value& persistent_id) {
  const StorageId id = as_storage_id(persistent_id);
  const StorageRecord* storage = document.find_storage(id.key);
  if (storage == nullptr) {
    throw Error(ErrorCode::Corrupt, {}, "storage " + escaped(id.key) + " is not in the archive");
  }
  const Extents shape = {storage->region.bytes.count_bytes};
  return {"", "", DType::UInt8, shape, {{whole(shape), storage->region}}};
}

}  // namespace

ObjectDigests::ObjectDigests(const std::vector<ObjectTree>& objects, PayloadHasher& hasher)
    : hasher_(hasher) {
  for (const ObjectTree& object : objects) {
    try {
      add_payloads(object);
    } catch (Error& error) {
      throw error.within({.file = object.file, .key = object.key});
    }
  }
}

ObjectDigests::Encoding& ObjectDigests::encoding_of(const Document& document) {
  std::unique_ptr<Encoding>& encoding = encodings_[&document];
  if (!encoding) {
    const auto digest = [this, &document](NodeId node) { return payload_digest(document, node); };
    encoding = std::make_unique<Encoding>(
        Encoding{PayloadSearch(document.tree), CanonicalEncoder(document.tree, digest)});
  }
  return *encoding;
}

void ObjectDigests::add_payloads(const ObjectTree& object) {
  const Document& document = *object.document;
  for (const NodeId node : encoding_of(document).search.unseen_below(object.root)) {
    const Value value = document.tree.value(node);
    const auto tensor = as_tensor(value);
    const size_t number =
        hasher_.add(tensor ? make_tensor_entry(document, {"", node, *tensor}, object.file)
                           : entry_of_storage(document, value));
    numbers_.emplace(std::pair(&document, node), number);
  }
}

Sha256 ObjectDigests::digest(const ObjectTree& object) {
  return encoding_of(*object.document).encoder.digest(object.root);
}

const Sha256& ObjectDigests::payload_digest(const Document& document, NodeId node) const {
  return hasher_.digest(numbers_.at({&document, node}));
}

std::vector<size_t> ObjectDigests::payloads_of(const Document& document) const {
  std::vector<size_t> numbers;
  for (auto at = numbers_.lower_bound({&document, NodeId()});
       at != numbers_.end() && at->first.first == &document; ++at) {
    numbers.push_back(at->second);
  }
  return numbers;
}

const CanonicalEncoder& ObjectDigests::encoder(const Document& document) const {
  return encodings_.at(&document)->encoder;
}

}  // namespace ckpt
