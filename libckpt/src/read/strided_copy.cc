#include "read/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

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

// Elements of a row in a tile: a line of memory, or two.
constexpr uint64_t kTileColumns = 32;
// Shorter rows, and fewer of them, are not worth a tile.
constexpr uint64_t kColumnsMin = 8;

template <size_t kBytes>
void write_tile(std::span<const StridedEnds> rows, uint64_t first, uint64_t count,
                uint64_t stride) {
  std::array<std::byte, ColumnWriter::kRowsMax * kTileColumns * kBytes> tile;
  constexpr uint64_t kRowBytes = kTileColumns * kBytes;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::memcpy(&tile[r * kRowBytes], rows[r].source + first * kBytes, count * kBytes);
  }
  for (uint64_t c = 0; c < count; ++c) {
    const uint64_t offset_bytes = (first + c) * stride * kBytes;
    for (size_t r = 0; r < rows.size(); ++r) {
      std::memcpy(rows[r].target + offset_bytes, &tile[r * kRowBytes + c * kBytes], kBytes);
    }
  }
}

template <size_t kBytes>
void write_columns(std::span<const StridedEnds> rows, uint64_t count, uint64_t stride) {
  for (uint64_t first = 0; first < count; first += kTileColumns) {
    write_tile<kBytes>(rows, first, std::min(kTileColumns, count - first), stride);
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

void ColumnWriter::flush() {
  const auto rows = std::span(rows_).first(std::exchange(row_count_, 0));
  switch (element_bytes_) {
    case 1: return write_columns<1>(rows, count_, stride_);
    case 2: return write_columns<2>(rows, count_, stride_);
    case 4: return write_columns<4>(rows, count_, stride_);
    case 8: return write_columns<8>(rows, count_, stride_);
    default: return write_columns<16>(rows, count_, stride_);
  }
}

std::vector<StridedDim> rows_of_columns(std::span<const StridedDim> dims) {
  if (dims.size() < 2) return {};
  const StridedDim& last = dims.back();
  uint64_t rows = 1;
  for (const StridedDim& dim : dims.first(dims.size() - 1)) rows *= dim.size;
  const bool is_column = last.source_stride == 1 && last.target_stride != 1;
  if (!is_column || last.size < kColumnsMin || rows < kColumnsMin) return {};
  std::vector<StridedDim> ordered(dims.begin(), dims.end() - 1);
  std::ranges::stable_sort(ordered, std::greater<>(), &StridedDim::target_stride);
  return ordered;
}

void copy_strided(std::span<const StridedDim> dims, uint64_t element_bytes, StridedEnds at) {
  if (dims.empty()) return copy_row({1, 1, 1}, element_bytes, at);
  if (const auto rows = rows_of_columns(dims); !rows.empty()) {
    ColumnWriter columns(dims.back().size, dims.back().target_stride, element_bytes);
    StridedWalk walk(rows);
    do {
      columns.add({at.source + walk.source_offset() * element_bytes,
                   at.target + walk.target_offset() * element_bytes});
    } while (walk.next());
    return columns.flush();
  }
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
