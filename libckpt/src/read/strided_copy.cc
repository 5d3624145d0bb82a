#include "read/strided_copy.h"

#include <algorithm>
#include <cstring>

namespace ckpt {

namespace {

template <size_t kBytes>
void copy_elements(const StridedDim& dim, StridedEnds at) {
  for (uint64_t i = 0; i < dim.size; ++i) {
    std::memcpy(at.target + i * dim.target_stride * kBytes,
                at.source + i * dim.source_stride * kBytes, kBytes);
  }
}

void copy_row(const StridedDim& dim, uint64_t element_bytes, StridedEnds at) {
  if (dim.source_stride == 1 && dim.target_stride == 1) {
    std::memcpy(at.target, at.source, dim.size * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1: return copy_elements<1>(dim, at);
    case 2: return copy_elements<2>(dim, at);
    case 4: return copy_elements<4>(dim, at);
    case 8: return copy_elements<8>(dim, at);
    default: return copy_elements<16>(dim, at);
  }
}

bool one_run(const StridedDim& outer, const StridedDim& inner) {
  return outer.source_stride == inner.size * inner.source_stride &&
         outer.target_stride == inner.size * inner.target_stride;
}

}  // namespace

std::vector<StridedDim> joined(std::vector<StridedDim> dims) {
  std::erase_if(dims, [](const StridedDim& dim) { return dim.size == 1; });
  std::ranges::stable_sort(dims, std::greater<>(), &StridedDim::source_stride);
  std::vector<StridedDim> result;
  for (const StridedDim& dim : dims) {
    if (!result.empty() && one_run(result.back(), dim)) {
      result.back() = {result.back().size * dim.size, dim.source_stride, dim.target_stride};
    } else {
      result.push_back(dim);
    }
  }
  return result;
}

uint64_t source_span(std::span<const StridedDim> dims) {
  uint64_t elements = 1;
  for (const StridedDim& dim : dims) elements += (dim.size - 1) * dim.source_stride;
  return elements;
}

void copy_strided(std::span<const StridedDim> dims, uint64_t element_bytes, StridedEnds at) {
  if (dims.empty()) return copy_row({1, 1, 1}, element_bytes, at);
  StridedWalk walk(dims.first(dims.size() - 1));
  do {
    copy_row(dims.back(), element_bytes,
             {at.source + walk.source_offset() * element_bytes,
              at.target + walk.target_offset() * element_bytes});
  } while (walk.next());
}

bool StridedWalk::next() {
  for (size_t d = dims_.size(); d-- > 0;) {
    source_offset_ += dims_[d].source_stride;
    target_offset_ += dims_[d].target_stride;
    if (++index_[d] < dims_[d].size) return true;
    source_offset_ -= dims_[d].size * dims_[d].source_stride;
    target_offset_ -= dims_[d].size * dims_[d].target_stride;
    index_[d] = 0;
  }
  return false;
}

}  // namespace ckpt
