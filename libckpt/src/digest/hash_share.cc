#include "digest/hash_share.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "work/deal_by_bytes.h"

namespace ckpt {
namespace {

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

}  // namespace

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

}  // namespace ckpt
