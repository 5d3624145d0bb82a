#include "digest/object_digests.h"

#include <algorithm>

#include <ckpt/error.h>

#include "codec/hash_functions.h"
#include "format/torch/torch_save.h"
#include "format/values/torch_values.h"
#include "read/payload_reader.h"
#include "work/workers.h"

namespace ckpt {
namespace {

// Tensors with equal identities have equal bytes: one chunk, cut from the same storage the same
// way. Empty for tensors of several chunks.
std::string identity_of(const TensorEntry& tensor) {
  if (tensor.chunks.size() != 1) return {};
  const Chunk& chunk = tensor.chunks.front();
  std::string identity(name(tensor.dtype));
  const auto put = [&](uint64_t number) { identity += " " + std::to_string(number); };
  put(chunk.region.file);
  put(chunk.region.bytes.offset_bytes);
  put(static_cast<uint64_t>(chunk.region.wrapping));
  put(chunk.payload_offset_bytes);
  for (const uint64_t size : tensor.shape) put(size);
  if (!chunk.view) return identity;
  identity += " view";
  put(chunk.view->offset);
  for (const uint64_t stride : chunk.view->strides) put(stride);
  return identity;
}

Sha256 hash_tensor(const TensorEntry& tensor, const PayloadSource& source,
                   std::span<std::byte> slab, WorkMeter& meter) {
  BoxReader reader(tensor, whole(tensor.shape), source);
  Sha256Stream stream;
  for (uint64_t left = count_bytes(tensor); left != 0;) {
    const auto piece = slab.first(std::min<uint64_t>(left, slab.size()));
    reader.read(piece);
    stream.update(piece);
    left -= piece.size();
    meter.advance(piece.size());
  }
  return stream.finish();
}

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

size_t PayloadHasher::add(TensorEntry tensor) {
  const size_t number = tensors_.size();
  const std::string identity = identity_of(tensor);
  if (!identity.empty()) {
    const auto [known, is_new] = known_.try_emplace(identity, number);
    if (!is_new) return known->second;
  }
  tensors_.push_back(std::move(tensor));
  return number;
}

uint64_t PayloadHasher::payload_bytes(size_t number) const { return count_bytes(tensors_[number]); }

void PayloadHasher::run(const PayloadSource& source, const ExecuteOptions& options,
                        const std::vector<bool>& wanted) {
  std::vector<size_t> order;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (wanted.empty() || wanted[i]) order.push_back(i);
  }
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [this](size_t number) { return payload_bytes(number); });
  uint64_t total_bytes = 0;
  for (const size_t number : order) total_bytes += payload_bytes(number);
  WorkMeter meter(options, total_bytes);
  const PassingSource passing(source);
  digests_.resize(tensors_.size());
  run_with_slabs(order.size(), options, [&](size_t index, std::span<std::byte> slab) {
    const TensorEntry& tensor = tensors_[order[index]];
    digests_[order[index]] =
        within(tensor.file, tensor.key, [&] { return hash_tensor(tensor, passing, slab, meter); });
  });
}

ObjectDigests::ObjectDigests(const std::vector<ObjectTree>& objects, PayloadHasher& hasher)
    : hasher_(hasher) {
  for (const ObjectTree& object : objects) {
    within(object.file, object.key, [&] { add_payloads(object); });
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
