#include "read/strided_copy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/rounding.h>

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

template <DType kType>
float load(const std::byte* at) {
  if constexpr (kType == DType::Float32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  } else {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    if constexpr (kType == DType::Int16) return static_cast<float>(static_cast<int16_t>(bits));
    return widened(kType, bits);
  }
}

// What a row has lost.
struct Lost {
  uint32_t too_large = 0;  // of finite numbers
  uint32_t zero = 0;       // of normal numbers; less are denormal in any of the types
};

template <DType kType>
void store(float value, std::byte* at, Lost& lost) {
  if constexpr (kType == DType::Float32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
  constexpr uint32_t kInfinity = 0x7F800000, kNormalMin = 0x00800000;
  uint16_t bits;
  if constexpr (kType == DType::Int16) {
    const bool fits = value == std::nearbyint(value) && value >= -32768 && value <= 32767;
    lost.too_large += fits ? 0 : 1;
    bits = fits ? static_cast<uint16_t>(static_cast<int16_t>(value)) : 0;
  } else {
    constexpr uint16_t kOver = kType == DType::BFloat16 ? 0x7F80 : 0x7C00;
    bits = kType == DType::BFloat16 ? round_to_bfloat16(value) : round_to_float16(value);
    const auto rest = static_cast<uint16_t>(bits & 0x7FFF);
    lost.too_large += (rest == kOver && magnitude < kInfinity) ? 1 : 0;
    lost.zero += (rest == 0 && magnitude >= kNormalMin) ? 1 : 0;
  }
  std::memcpy(at, &bits, sizeof bits);
}

template <DType kFrom, DType kTo>
Lost cast_elements(const StridedDim& dim, StridedEnds at) {
  constexpr uint64_t kFromBytes = kFrom == DType::Float32 ? 4 : 2;
  constexpr uint64_t kToBytes = kTo == DType::Float32 ? 4 : 2;
  Lost lost;
  if (dim.source_stride == 1 && dim.target_stride == 1) {
    for (uint64_t i = 0; i < dim.size; ++i) {
      store<kTo>(load<kFrom>(at.source + i * kFromBytes), at.target + i * kToBytes, lost);
    }
    return lost;
  }
  for (uint64_t i = 0; i < dim.size; ++i) {
    store<kTo>(load<kFrom>(at.source + i * dim.source_stride * kFromBytes),
               at.target + i * dim.target_stride * kToBytes, lost);
  }
  return lost;
}

// Calls visit with the type as a constant.
template <class Visit>
auto with_type(DType type, const Visit& visit) {
  switch (type) {
    case DType::BFloat16: return visit(DTypeIs<DType::BFloat16>());
    case DType::Float16: return visit(DTypeIs<DType::Float16>());
    case DType::Int16: return visit(DTypeIs<DType::Int16>());
    default: return visit(DTypeIs<DType::Float32>());
  }
}

Lost cast_row_of(DType from, DType to, const StridedDim& dim, StridedEnds at) {
  return with_type(from, [&](auto stored) {
    return with_type(to, [&](auto made) {
      return cast_elements<decltype(stored)::kValue, decltype(made)::kValue>(dim, at);
    });
  });
}

float value_at(DType from, const std::byte* at) {
  return with_type(from, [at](auto stored) { return load<decltype(stored)::kValue>(at); });
}

// Not for speed: norms are small.
Lost add_to_row(const TensorEntry& tensor, const StridedDim& dim, StridedEnds at) {
  const uint64_t from_bytes = bytes_per_element(tensor.cast->stored);
  const uint64_t to_bytes = bytes_per_element(tensor.dtype);
  Lost lost;
  for (uint64_t i = 0; i < dim.size; ++i) {
    const std::byte* const source = at.source + i * dim.source_stride * from_bytes;
    const float sum = value_at(tensor.cast->stored, source) + tensor.cast->added;
    std::byte bytes[sizeof sum];
    std::memcpy(bytes, &sum, sizeof sum);
    const Lost one = cast_row_of(DType::Float32, tensor.dtype, {1, 1, 1},
                                 {bytes, at.target + i * dim.target_stride * to_bytes});
    lost.too_large += one.too_large;
    lost.zero += one.zero;
  }
  return lost;
}

// Of a row that has lost something: names the first value.
[[noreturn]] void refuse(const TensorEntry& tensor, const StridedDim& dim, const std::byte* source,
                         bool is_zero) {
  const Cast& cast = *tensor.cast;
  std::ostringstream text;
  for (uint64_t i = 0; i < dim.size; ++i) {
    const std::byte* const at = source + i * dim.source_stride * bytes_per_element(cast.stored);
    std::byte made[4];
    const Lost lost = cast.added != 0
                          ? add_to_row(tensor, {1, 1, 1}, {at, made})
                          : cast_row_of(cast.stored, tensor.dtype, {1, 1, 1}, {at, made});
    if ((is_zero ? lost.zero : lost.too_large) == 0) continue;
    text << "holds " << value_at(cast.stored, at) << ", which ";
    break;
  }
  const std::string type(name(tensor.dtype));
  text << (is_zero ? type + " rounds to 0: " + cast.zero_is_wrong
                   : "is not a value of type " + type);
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = tensor.key}, text.str(),
              is_zero ? "bfloat16 holds numbers as small as float32 does"
                      : "choose a type that can hold it, or let it keep its own");
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

ElementMover::ElementMover(const TensorEntry& tensor)
    : tensor_(tensor),
      cast_(tensor.cast.get()),
      stored_bytes_(bytes_per_element(stored_type(tensor))),
      bytes_(bytes_per_element(tensor.dtype)) {}

void ElementMover::move(std::span<const StridedDim> dims, StridedEnds at) {
  if (cast_ == nullptr) return copy_strided(dims, bytes_, at);
  if (dims.empty()) return cast_row({1, 1, 1}, at);
  if (const auto rows = rows_of_columns(dims); !rows.empty()) {
    return cast_columns(rows, dims.back(), at);
  }
  StridedWalk walk(dims.first(dims.size() - 1));
  do {
    cast_row(dims.back(), {at.source + walk.source_offset() * stored_bytes_,
                           at.target + walk.target_offset() * bytes_});
  } while (walk.next());
}

void ElementMover::cast_columns(const std::vector<StridedDim>& rows, const StridedDim& column,
                                StridedEnds at) {
  std::vector<std::byte> cast(ColumnWriter::kRowsMax * column.size * bytes_);
  ColumnWriter columns(column.size, column.target_stride, bytes_);
  size_t row = 0;
  StridedWalk walk(rows);
  do {
    std::byte* const made = &cast[row++ % ColumnWriter::kRowsMax * column.size * bytes_];
    cast_row({column.size, 1, 1}, {at.source + walk.source_offset() * stored_bytes_, made});
    columns.add({made, at.target + walk.target_offset() * bytes_});
  } while (walk.next());
  columns.flush();
}

void ElementMover::cast_row(const StridedDim& dim, StridedEnds at) {
  const Lost lost = cast_->added != 0 ? add_to_row(tensor_, dim, at)
                                      : cast_row_of(cast_->stored, tensor_.dtype, dim, at);
  if (lost.too_large != 0 && !cast_->may_overflow) refuse(tensor_, dim, at.source, false);
  if (lost.zero != 0 && !cast_->zero_is_wrong.empty()) refuse(tensor_, dim, at.source, true);
  overflow_count_ += lost.too_large;
}

}  // namespace ckpt
