// Values of rank files, compared with the tensors that the catalog has in them.
#include "layouts/parts/placed_value.h"

#include <algorithm>
#include <vector>

#include <ckpt/tensor_stream.h>

#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::TensorEntry;

// The catalog's entries of the tensors in a value that lies at `place`; null for one without.
std::vector<const TensorEntry*> tensors_at(const OpenedTraining& source, const ckpt::Value& value,
                                           const Place& place) {
  std::vector<const TensorEntry*> found;
  for (const ckpt::TensorAt& tensor : ckpt::tensors_in(value)) {
    found.push_back(source.catalog().find_tensor(place.pointer + tensor.pointer, place.file));
  }
  return found;
}

}  // namespace

bool are_equal_values(const OpenedTraining& source, const PlacedValue& a, const PlacedValue& b) {
  if (first_difference(a.value, b.value)) return false;
  const auto tensors_a = tensors_at(source, a.value, a.place);
  const auto tensors_b = tensors_at(source, b.value, b.place);
  return std::ranges::equal(tensors_a, tensors_b, [&](const auto* one, const auto* other) {
    return one != nullptr && other != nullptr && ckpt::same_bytes(*one, source, *other, source);
  });
}

RankItems::AreEqual equal_items_of(const OpenedTraining& source) {
  return [&source](const RankItems::Stated& a, const RankItems::Stated& b) {
    return are_equal_values(source, {a.value, a.place}, {b.value, b.place});
  };
}

}  // namespace optim
