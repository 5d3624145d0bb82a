#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/checkpoint.h>

namespace ckpt {

// What the elements of a tensor are like. The moments are over finite elements; none where there is
// none, and none for complex tensors.
struct Statistics {
  struct Moments {
    double min = 0, max = 0, mean = 0;
    double std = 0;  // of the population: divided by the count, not by the count minus one
  };
  uint64_t element_count = 0;
  uint64_t zero_count = 0;  // both signs
  uint64_t nan_count = 0;   // complex: either part
  uint64_t inf_count = 0;
  std::optional<Moments> moments;
  std::vector<std::string> first_values;  // row-major, as text
};

// Streams the tensor once, in row-major order, through a slab of at most 4 MiB. The result does not
// depend on how the tensor is chunked.
CKPT_EXPORT Statistics make_statistics(const TensorEntry& tensor, const PayloadSource& source,
                                       size_t first_values_max = 8);

}  // namespace ckpt
