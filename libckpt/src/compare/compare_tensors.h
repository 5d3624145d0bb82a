#pragma once

#include <optional>
#include <vector>

#include <ckpt/diff.h>

namespace ckpt {

struct TensorPair {  // of one dtype and shape
  const TensorEntry& a;
  const TensorEntry& b;
};

struct SourcePair {
  const PayloadSource& a;
  const PayloadSource& b;
};

// By index of `pairs`; nullopt where the elements are equal. Two slabs of memory per thread.
std::vector<std::optional<ValueDifference>> compare_tensors(const std::vector<TensorPair>& pairs,
                                                            const SourcePair& sources,
                                                            const DiffOptions& options);

}  // namespace ckpt
