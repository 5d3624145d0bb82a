#include <ckpt/hash.h>

#include <algorithm>
#include <tuple>

#include "codec/sha256.h"
#include "digest/hash_share.h"
#include "digest/object_digests.h"
#include "digest/payload_hasher.h"

namespace ckpt {
namespace {

TensorHash name_and_type(const TensorEntry& tensor) {
  return {tensor.file, tensor.key, tensor.dtype, tensor.shape, {}};
}

// Equal names keep the order in which they are stored.
template <class Hash>
void sort_by_name(std::vector<Hash>& hashes) {
  std::ranges::stable_sort(hashes, {},
                           [](const Hash& hash) { return std::tie(hash.file, hash.key); });
}

// The tensors inside an object, with the digests that are known.
std::vector<TensorHash> list_tensors_in(const ObjectTree& object, const ObjectDigests* digests) {
  std::vector<TensorHash> hashes;
  if (!object.lists_tensors) return hashes;
  for (const TensorAt& tensor : tensors_in(*object.document)) {
    hashes.push_back(
        {"", tensor.pointer, tensor.view.dtype, tensor.view.shape, {}, digests != nullptr});
    if (digests != nullptr) {
      hashes.back().sha256 = digests->payload_digest(*object.document, tensor.node);
    }
  }
  sort_by_name(hashes);
  return hashes;
}

// Writes what the digest of the whole covers (docs/formats/canonical_encoding.md, "The digest").
class DigestWriter : public Sha256Stream {
 public:
  using Sha256Stream::put;
  void put(const Sha256& digest) { update(std::as_bytes(std::span(digest.bytes))); }
  void put(const TensorHash& tensor) {
    put(tensor.file);
    put(tensor.key);
    put(name(tensor.dtype));
    put(tensor.shape.size());
    for (const uint64_t size : tensor.shape) put(size);
    put(tensor.sha256);
  }
  void put(const ObjectHash& object) {
    put(object.file);
    put(object.key);
    put(object.sha256);
  }
};

HashShare everything(const Inventory& inventory) {
  return {std::vector<bool>(inventory.tensors.size(), true),
          std::vector<bool>(inventory.objects.size(), true),
          {}};
}

}  // namespace

Sha256 digest_of(const Hashes& hashes) {
  DigestWriter writer;
  writer.put(hashes.tensors.size());
  for (const TensorHash& tensor : hashes.tensors) writer.put(tensor);
  writer.put(hashes.objects.size());
  for (const ObjectHash& object : hashes.objects) writer.put(object);
  return writer.finish();
}

Hashes list_hashed(const Inventory& inventory) {
  Hashes hashes;
  for (const TensorEntry& tensor : inventory.tensors) {
    hashes.tensors.push_back(name_and_type(tensor));
    hashes.tensors.back().is_own = false;
  }
  for (const ObjectTree& object : inventory.objects) {
    hashes.objects.push_back(
        {object.file, object.key, {}, list_tensors_in(object, nullptr), false});
  }
  sort_by_name(hashes.tensors);
  sort_by_name(hashes.objects);
  return hashes;
}

Hashes hash(const Inventory& inventory, const PayloadSource& source, const ExecuteOptions& options,
            Share share) {
  PayloadHasher hasher;
  std::vector<size_t> numbers;
  for (const TensorEntry& tensor : inventory.tensors) numbers.push_back(hasher.add(tensor));
  ObjectDigests digests(inventory.objects, hasher);
  const HashShare own = share.world_size == 1
                            ? everything(inventory)
                            : make_hash_share({inventory, numbers, digests, hasher}, share);
  hasher.run(source, options, own.payloads);

  Hashes hashes;
  for (size_t i = 0; i < numbers.size(); ++i) {
    hashes.tensors.push_back(name_and_type(inventory.tensors[i]));
    hashes.tensors.back().sha256 = hasher.digest(numbers[i]);
    hashes.tensors.back().is_own = own.tensors[i];
  }
  for (size_t i = 0; i < inventory.objects.size(); ++i) {
    const ObjectTree& object = inventory.objects[i];
    const bool is_own = own.objects[i];
    hashes.objects.push_back({object.file, object.key, is_own ? digests.digest(object) : Sha256{},
                              list_tensors_in(object, is_own ? &digests : nullptr), is_own});
  }
  sort_by_name(hashes.tensors);
  sort_by_name(hashes.objects);
  if (share.world_size == 1) hashes.digest = digest_of(hashes);
  return hashes;
}

}  // namespace ckpt
