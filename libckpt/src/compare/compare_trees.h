#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/diff.h>

#include "digest/canonical_encoding.h"

namespace ckpt {

struct EncodedValue {
  Value value;
  const CanonicalEncoder& encoder;  // has encoded the value
};

// The places where two values differ, outermost containers entered as far as both have the same
// kind. Keeps the first `details_max` of them in `details`, in order, and returns how many there
// are.
uint64_t compare_trees(const EncodedValue& a, const EncodedValue& b, size_t details_max,
                       std::vector<PlaceDifference>& details);

}  // namespace ckpt
