#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/diff.h>

#include "digest/canonical_encoding.h"

namespace ckpt {

struct TensorPair {  // of one dtype and shape
  const TensorEntry& a;
  const TensorEntry& b;
};

// By index of `pairs`; nullopt where the elements are equal. Two slabs of memory per thread.
std::vector<std::optional<ValueDifference>> compare_tensors(const std::vector<TensorPair>& pairs,
                                                            const PayloadSource& source_a,
                                                            const PayloadSource& source_b,
                                                            const DiffOptions& options);

struct EncodedValue {
  Value value;
  const CanonicalEncoder& encoder;  // has encoded the value
};

struct TreeOptions {
  size_t details_max;
  std::function<bool(const std::string& pointer)> is_told;  // of a tensor: it is told of elsewhere
};

// The places where two values differ, outermost containers entered as far as both have the same
// kind, without tensors that are told of. Keeps the first `details_max` of them in `details`, in
// order, and returns how many there are.
uint64_t compare_trees(const EncodedValue& a, const EncodedValue& b, const TreeOptions& options,
                       std::vector<PlaceDifference>& details);

}  // namespace ckpt
