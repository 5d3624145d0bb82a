#include <ckpt/diff.h>

#include <algorithm>
#include <deque>
#include <string_view>
#include <tuple>

#include <ckpt/cast.h>

#include "compare/compare.h"
#include "digest/object_digests.h"

namespace ckpt {
namespace {

template <class Entry>
struct Pair {
  const Entry* a = nullptr;
  const Entry* b = nullptr;
  const Entry& any() const { return a != nullptr ? *a : *b; }
};

template <class Entry>
bool precedes(const Entry* x, const Entry* y) {
  return std::tie(x->file, x->key) < std::tie(y->file, y->key);
}

// By name; of equal names those with keys of one type together.
template <class Entry>
std::vector<const Entry*> sorted_by_name(const std::vector<Entry>& entries) {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) sorted.push_back(&entry);
  std::ranges::stable_sort(sorted, {}, [](const Entry* entry) {
    return std::tie(entry->file, entry->key, entry->key_kind);
  });
  return sorted;
}

// Merges the two sides by name. What is listed n times in one and m times in the other gives min(n,
// m) pairs, in order.
template <class Entry>
std::vector<Pair<Entry>> match(const std::vector<Entry>& a, const std::vector<Entry>& b) {
  const auto a_sorted = sorted_by_name(a), b_sorted = sorted_by_name(b);
  auto a_next = a_sorted.begin(), b_next = b_sorted.begin();
  std::vector<Pair<Entry>> pairs;
  while (a_next != a_sorted.end() || b_next != b_sorted.end()) {
    const bool take_a =
        b_next == b_sorted.end() || (a_next != a_sorted.end() && !precedes(*b_next, *a_next));
    const bool take_b =
        a_next == a_sorted.end() || (b_next != b_sorted.end() && !precedes(*a_next, *b_next));
    pairs.push_back({take_a ? *a_next++ : nullptr, take_b ? *b_next++ : nullptr});
  }
  return pairs;
}

template <class Entry>
std::optional<DifferenceKind> difference_in_name(const Pair<Entry>& pair) {
  if (pair.b == nullptr) return DifferenceKind::OnlyInA;
  if (pair.a == nullptr) return DifferenceKind::OnlyInB;
  if (pair.a->key_kind != pair.b->key_kind) return DifferenceKind::Key;
  return std::nullopt;
}

std::optional<DifferenceKind> difference_in_type(const Pair<TensorEntry>& pair) {
  if (const auto kind = difference_in_name(pair)) return kind;
  if (pair.a->shape != pair.b->shape) return DifferenceKind::Shape;
  if (pair.a->dtype != pair.b->dtype) return DifferenceKind::DType;
  return std::nullopt;
}

// The type in which the values of a pair are compared; nullopt where they are not.
std::optional<DType> compared_type(const Pair<TensorEntry>& pair) {
  const auto kind = difference_in_type(pair);
  if (!kind) return pair.a->dtype;
  if (kind != DifferenceKind::DType) return std::nullopt;
  const DType a = pair.a->dtype, b = pair.b->dtype;
  const bool are_floats = can_round(a) && can_round(b);
  if (!are_floats) return std::nullopt;
  if (is_widening(a)) return b;
  return is_widening(b) ? a : DType::Float32;
}

// The tensor in a type; one of another type is added to `cast`, which must outlive the result.
const TensorEntry& as_type(const TensorEntry& tensor, DType type, std::deque<TensorEntry>& cast) {
  if (tensor.dtype == type) return tensor;
  return cast.emplace_back(with_cast(tensor, type, {.may_overflow = true}));
}

std::vector<TensorDifference> diff_tensors(const std::vector<Pair<TensorEntry>>& pairs,
                                           const DiffSide& a, const DiffSide& b,
                                           const DiffOptions& options) {
  std::deque<TensorEntry> cast;
  std::vector<TensorPair> comparable;
  for (const auto& pair : pairs) {
    const auto type = compared_type(pair);
    if (type) comparable.push_back({as_type(*pair.a, *type, cast), as_type(*pair.b, *type, cast)});
  }
  std::vector<std::optional<ValueDifference>> values(comparable.size());
  if (!options.keys_only) values = compare_tensors(comparable, a.source, b.source, options);

  std::vector<TensorDifference> differences;
  auto value = values.begin();
  for (const auto& pair : pairs) {
    const auto kind = difference_in_type(pair);
    const bool is_compared = compared_type(pair).has_value();
    const std::optional<ValueDifference> found = is_compared ? *value++ : std::nullopt;
    if (!kind && !found) continue;
    differences.push_back({kind.value_or(DifferenceKind::Value), pair.any().file, pair.any().key,
                           pair.a, pair.b, found, kind && is_compared && !options.keys_only});
  }
  return differences;
}

ObjectDifference difference_of(const Pair<ObjectTree>& pair, DifferenceKind kind) {
  return {kind, pair.any().file, pair.any().key, pair.a, pair.b, 0, {}};
}

// The names of tensors that differ, which must outlive it, and of those that had others.
class ToldTensors {
 public:
  ToldTensors(const std::vector<TensorDifference>& tensors, const DiffOptions& options)
      : old_names_(options.old_names) {
    for (const TensorDifference& tensor : tensors) told_.emplace(tensor.file, tensor.key);
  }

  bool has(const ObjectTree& object, const std::string& pointer) const {
    if (object.lists_tensors) return false;
    const std::string key = object.key + pointer;
    return told_.contains(std::pair<std::string_view, std::string_view>(object.file, key)) ||
           old_names_.contains(key);
  }

 private:
  const std::set<std::string, std::less<>>& old_names_;
  std::set<std::pair<std::string_view, std::string_view>> told_;  // files and keys
};

std::vector<ObjectDifference> diff_objects(const std::vector<Pair<ObjectTree>>& pairs,
                                           const DiffSide& a, const DiffSide& b,
                                           const ToldTensors& told, const DiffOptions& options) {
  const std::vector<ObjectTree> none;
  PayloadHasher a_hasher, b_hasher;
  ObjectDigests a_digests(options.keys_only ? none : a.inventory.objects, a_hasher);
  ObjectDigests b_digests(options.keys_only ? none : b.inventory.objects, b_hasher);
  a_hasher.run(a.source, options.execution);
  b_hasher.run(b.source, options.execution);

  std::vector<ObjectDifference> differences;
  for (const auto& pair : pairs) {
    const auto kind = difference_in_name(pair);
    if (!kind && options.keys_only) continue;
    if (!kind && a_digests.digest(*pair.a) == b_digests.digest(*pair.b)) continue;
    ObjectDifference difference = difference_of(pair, kind.value_or(DifferenceKind::Value));
    if (!kind) {
      difference.place_count = compare_trees(
          {pair.a->document->tree.value(pair.a->root), a_digests.encoder(*pair.a->document)},
          {pair.b->document->tree.value(pair.b->root), b_digests.encoder(*pair.b->document)},
          {options.details_max,
           [&](const std::string& pointer) { return told.has(*pair.a, pointer); }},
          difference.details);
      if (difference.place_count == 0) continue;  // tensors alone
    }
    differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace

std::string_view name(DifferenceKind kind) {
  static constexpr std::string_view kNames[] = {"only_in_a", "only_in_b", "dtype",
                                                "shape",     "value",     "key"};
  return kNames[static_cast<size_t>(kind)];
}

Differences diff(const DiffSide& a, const DiffSide& b, const DiffOptions& options) {
  const auto tensors = match(a.inventory.tensors, b.inventory.tensors);
  const auto objects = match(a.inventory.objects, b.inventory.objects);
  Differences differences;
  differences.tensor_count = tensors.size();
  differences.object_count = objects.size();
  differences.tensors = diff_tensors(tensors, a, b, options);
  differences.objects =
      diff_objects(objects, a, b, ToldTensors(differences.tensors, options), options);
  return differences;
}

}  // namespace ckpt
