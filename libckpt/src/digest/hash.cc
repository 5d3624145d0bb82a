#include <ckpt/hash.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include <ckpt/staging.h>

#include "codec/hash_functions.h"
#include "digest/object_digests.h"
#include "work/workers.h"

namespace ckpt {
namespace {

// What one of several processes hashes. What has bytes in common goes to one process, so that no
// payload is read twice: a tensor that is listed twice, and the objects of a document with all that
// they hold. So do equal names: their order is that of one output.
struct HashShare {
  std::vector<bool> tensors, objects;  // by index in the inventory
  std::vector<bool> payloads;          // by the hasher's number
};

// What is known of an inventory before anything is read.
struct HashPlan {
  const Inventory& inventory;
  const std::vector<size_t>& numbers;  // the hasher's, of the inventory's tensors
  ObjectDigests& digests;
  const PayloadHasher& hasher;
};

// Entries of the inventory, tensors before objects, in sets of which one process takes each.
class EntrySets {
 public:
  EntrySets(size_t entry_count, size_t payload_count)
      : parents_(entry_count), first_with_(payload_count) {
    std::iota(parents_.begin(), parents_.end(), size_t{0});
  }

  void holds(size_t entry, size_t payload) { join(first_with_[payload], entry); }
  void is_named(size_t entry, bool is_object, std::string_view file, std::string_view key) {
    join(named_[{is_object, {file, key}}], entry);
  }
  // True for the first entry of a document.
  bool is_of(size_t entry, const Document& document) {
    return join(of_document_[&document], entry);
  }

  size_t set_of(size_t entry) {
    while (parents_[entry] != entry) entry = parents_[entry] = parents_[parents_[entry]];
    return entry;
  }
  // The entry that a payload's set was joined by first; every payload is some entry's.
  size_t set_of_payload(size_t payload) { return set_of(*first_with_[payload]); }

 private:
  using Name = std::pair<bool, std::pair<std::string_view, std::string_view>>;

  bool join(std::optional<size_t>& first, size_t entry) {
    if (!first) {
      first = entry;
      return true;
    }
    const size_t a = set_of(*first), b = set_of(entry);
    parents_[std::max(a, b)] = std::min(a, b);
    return false;
  }

  std::vector<size_t> parents_;
  std::vector<std::optional<size_t>> first_with_;  // by payload
  std::map<Name, std::optional<size_t>> named_;
  std::map<const Document*, std::optional<size_t>> of_document_;
};

EntrySets join_entries(const HashPlan& plan) {
  const Inventory& inventory = plan.inventory;
  const size_t tensor_count = inventory.tensors.size();
  EntrySets sets(tensor_count + inventory.objects.size(), plan.hasher.size());
  for (size_t i = 0; i < tensor_count; ++i) {
    const TensorEntry& tensor = inventory.tensors[i];
    sets.holds(i, plan.numbers[i]);
    sets.is_named(i, false, tensor.file, tensor.key);
  }
  for (size_t i = 0; i < inventory.objects.size(); ++i) {
    const ObjectTree& object = inventory.objects[i];
    const size_t entry = tensor_count + i;
    sets.is_named(entry, true, object.file, object.key);
    if (!sets.is_of(entry, *object.document)) continue;
    for (const size_t payload : plan.digests.payloads_of(*object.document))
      sets.holds(entry, payload);
  }
  return sets;
}

// Pure: every process finds the same shares.
HashShare make_hash_share(const HashPlan& plan, Share share) {
  check_share(share);
  EntrySets sets = join_entries(plan);
  const PayloadHasher& hasher = plan.hasher;
  const size_t tensor_count = plan.inventory.tensors.size();
  std::vector<uint64_t> set_bytes(tensor_count + plan.inventory.objects.size(), 0);
  for (size_t payload = 0; payload < hasher.size(); ++payload) {
    set_bytes[sets.set_of_payload(payload)] += hasher.payload_bytes(payload);
  }
  const std::vector<uint32_t> owner = deal_by_bytes(set_bytes, share.world_size);
  const auto is_own = [&](size_t set) { return owner[set] == share.rank; };
  HashShare result;
  for (size_t i = 0; i < set_bytes.size(); ++i) {
    (i < tensor_count ? result.tensors : result.objects).push_back(is_own(sets.set_of(i)));
  }
  for (size_t payload = 0; payload < hasher.size(); ++payload) {
    result.payloads.push_back(is_own(sets.set_of_payload(payload)));
  }
  return result;
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

HashShare whole_share(const Inventory& inventory, bool is_own) {
  return {std::vector<bool>(inventory.tensors.size(), is_own),
          std::vector<bool>(inventory.objects.size(), is_own),
          {}};
}

// All entries by name, with the digests of what is own. `plan`: hashed; null: nothing is own.
Hashes hashes_of(const Inventory& inventory, const HashPlan* plan, const HashShare& own) {
  Hashes hashes;
  for (size_t i = 0; i < inventory.tensors.size(); ++i) {
    const TensorEntry& tensor = inventory.tensors[i];
    hashes.tensors.push_back({tensor.file, tensor.key, tensor.dtype, tensor.shape,
                              plan ? plan->hasher.digest(plan->numbers[i]) : Sha256{},
                              own.tensors[i]});
  }
  for (size_t i = 0; i < inventory.objects.size(); ++i) {
    const ObjectTree& object = inventory.objects[i];
    ObjectDigests* const digests = own.objects[i] ? &plan->digests : nullptr;
    hashes.objects.push_back({object.file, object.key, digests ? digests->digest(object) : Sha256{},
                              list_tensors_in(object, digests), own.objects[i]});
  }
  sort_by_name(hashes.tensors);
  sort_by_name(hashes.objects);
  return hashes;
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
  return hashes_of(inventory, nullptr, whole_share(inventory, false));
}

Hashes hash(const Inventory& inventory, const PayloadSource& source, const ExecuteOptions& options,
            Share share) {
  PayloadHasher hasher;
  std::vector<size_t> numbers;
  for (const TensorEntry& tensor : inventory.tensors) numbers.push_back(hasher.add(tensor));
  ObjectDigests digests(inventory.objects, hasher);
  const HashPlan plan{inventory, numbers, digests, hasher};
  const HashShare own =
      share.world_size == 1 ? whole_share(inventory, true) : make_hash_share(plan, share);
  hasher.run(source, options, own.payloads);
  Hashes hashes = hashes_of(inventory, &plan, own);
  if (share.world_size == 1) hashes.digest = digest_of(hashes);
  return hashes;
}

}  // namespace ckpt
