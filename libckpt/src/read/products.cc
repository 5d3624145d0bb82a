// Tensors that lie in no file, as files of their own by number; elements that are stored as few
// bits and scales, read as their products.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/error.h>
#include <ckpt/payload_source.h>
#include <ckpt/rounding.h>

#include "model/element.h"

namespace ckpt {
namespace {

constexpr uint64_t kPieceElements = uint64_t{1} << 16;

// By nibble: e2m1 of the OCP microscaling formats.
constexpr std::array<float, 16> kFourBits = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                             4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                             -2.0F, -3.0F, -4.0F, -6.0F};

// Of uint8 scales: 2^(byte - 127), of which 2^128 is infinite.
float power_of_byte(uint8_t byte) {
  return byte == 0xFF ? std::numeric_limits<float>::infinity() : std::ldexp(1.0F, byte - 127);
}

float number_at(DType type, const std::byte* at) {
  return visit_element(type, [at](auto element) {
    using Element = decltype(element);
    return static_cast<float>(Element::value(load_bits<Element>(at)));
  });
}

float scale_at(DType type, const std::byte* at) {
  if (type == DType::UInt8) return power_of_byte(static_cast<uint8_t>(*at));
  return number_at(type, at);
}

std::array<float, 256> values_of_bytes(DType type) {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    const std::array<std::byte, 16> byte = {static_cast<std::byte>(i)};  // of the widest type
    values[i] = number_at(type, byte.data());
  }
  return values;
}

bool is_scale(DType type) {
  return can_round(type) || type == DType::UInt8 || type == DType::Float8E8M0FNU;
}
bool is_value(DType type) {
  return type == DType::Float8E4M3FN || type == DType::Float8E5M2 || type == DType::UInt8;
}

uint64_t blocks_in(uint64_t count, uint64_t block) { return (count + block - 1) / block; }

// How products lie in rows, those of all matrices one behind the other.
struct Rows {
  explicit Rows(const Scaled& scaled)
      : columns(scaled.shape.back()),
        of_matrix(scaled.shape[scaled.shape.size() - 2]),
        block_rows(scaled.block_rows),
        scale_rows(blocks_in(of_matrix, scaled.block_rows)),
        scale_columns(blocks_in(columns, scaled.block_columns)) {}
  uint64_t scale_row(uint64_t row) const {
    return row / of_matrix * scale_rows + row % of_matrix / block_rows;
  }
  uint64_t columns, of_matrix, block_rows, scale_rows, scale_columns;
};

// Of one tensor.
class Products {
 public:
  Products(const PayloadSource& source, Scaled scaled)
      : source_(source),
        scaled_(std::move(scaled)),
        values_(values_of_bytes(scaled_.values->dtype)) {}

  void fill(uint64_t first, std::span<std::byte> out) const {
    const uint64_t element_bytes = bytes_per_element(scaled_.type);
    while (!out.empty()) {
      const uint64_t count = std::min<uint64_t>(out.size() / element_bytes, kPieceElements);
      multiply(first, out.first(count * element_bytes));
      out = out.subspan(count * element_bytes);
      first += count;
    }
  }

 private:
  std::vector<std::byte> bytes_of(const TensorEntry& tensor, uint64_t offset_bytes,
                                  uint64_t count_bytes) const {
    std::vector<std::byte> bytes(count_bytes);
    const Chunk& chunk = tensor.chunks[0];
    source_.read_bytes(source_.locate(chunk.region), chunk.payload_offset_bytes + offset_bytes,
                       bytes);
    return bytes;
  }

  void multiply(uint64_t first, std::span<std::byte> out) const {
    const Scaled& scaled = scaled_;
    const Rows rows(scaled);
    const uint64_t element_bytes = bytes_per_element(scaled.type);
    const uint64_t end = first + out.size() / element_bytes;
    const bool is_packed = scaled.values->dtype == DType::UInt8;
    const uint64_t per_byte = is_packed ? 2 : 1, first_byte = first / per_byte;
    const auto values =
        bytes_of(*scaled.values, first_byte, (end + per_byte - 1) / per_byte - first_byte);
    const uint64_t first_scale = rows.scale_row(first / rows.columns) * rows.scale_columns;
    const uint64_t end_scale = (rows.scale_row((end - 1) / rows.columns) + 1) * rows.scale_columns;
    const uint64_t scale_bytes = bytes_per_element(scaled.scales->dtype);
    const auto scales = bytes_of(*scaled.scales, first_scale * scale_bytes,
                                 (end_scale - first_scale) * scale_bytes);
    for (uint64_t i = first; i < end;) {
      const uint64_t row = i / rows.columns, column = i % rows.columns;
      const uint64_t block = column / scaled.block_columns;
      const uint64_t behind =
          std::min((block + 1) * scaled.block_columns, rows.columns) - column + i;
      const uint64_t place = rows.scale_row(row) * rows.scale_columns + block - first_scale;
      const float scale = scale_at(scaled.scales->dtype, scales.data() + place * scale_bytes);
      for (const uint64_t last = std::min(behind, end); i < last; ++i) {
        const auto byte = static_cast<uint8_t>(values[i / per_byte - first_byte]);
        const float value =
            is_packed ? kFourBits[i % 2 == 0 ? byte & 0xF : byte >> 4] : values_[byte];
        put_float(value * scale, scaled.type, out.data() + (i - first) * element_bytes);
      }
    }
  }

  const PayloadSource& source_;
  Scaled scaled_;
  std::array<float, 256> values_;  // what a byte stands for
};

void require_one_chunk(const TensorEntry& tensor) {
  const bool is_plain = tensor.chunks.size() == 1 && !tensor.chunks[0].view && !tensor.cast &&
                        tensor.chunks[0].box.sizes == tensor.shape;
  if (is_plain) return;
  throw Error(ErrorCode::Unsupported, {.file = tensor.file, .key = tensor.key},
              "is not stored in one piece, as values and scales are");
}

class ComputedPayloads final : public PayloadSource {
 public:
  ComputedPayloads(const PayloadSource& source, uint32_t first_file,
                   std::vector<ComputedTensor> tensors, std::string shown)
      : source_(source),
        first_file_(first_file),
        tensors_(std::move(tensors)),
        shown_(std::move(shown)) {}

  LocatedRegion locate(const StorageRegion& region) const override {
    return is_computed(region.file) ? LocatedRegion{region} : source_.locate(region);
  }
  void read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    if (!is_computed(located.file)) return source_.read_bytes(located, offset_bytes, out);
    const ComputedTensor& tensor = tensors_.at(located.file - first_file_);
    tensor.fill((located.bytes.offset_bytes + offset_bytes) / tensor.element_bytes, out);
  }
  void read_once(const StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override {
    if (!is_computed(located.file)) return source_.read_once(located, offset_bytes, out);
    read_bytes(located, offset_bytes, out);
  }
  std::string file_name(uint32_t file) const override {
    return is_computed(file) ? shown_ : source_.file_name(file);
  }

 private:
  bool is_computed(uint32_t file) const { return file >= first_file_; }

  const PayloadSource& source_;
  uint32_t first_file_;
  std::vector<ComputedTensor> tensors_;
  std::string shown_;
};

}  // namespace

TensorEntry product_entry(const Scaled& scaled, std::string key, uint32_t file) {
  const auto& [values, scales, shape, block_rows, block_columns, type] = scaled;
  for (const auto& tensor : {values, scales}) {
    require_one_chunk(*tensor);
    if (tensor == values ? is_value(tensor->dtype) : is_scale(tensor->dtype)) continue;
    throw Error(ErrorCode::Unsupported, {.file = tensor->file, .key = tensor->key},
                "is of type " + std::string(name(tensor->dtype)) + ", which is not known as a " +
                    (tensor == values ? "value" : "scale"));
  }
  const uint64_t per_byte = values->dtype == DType::UInt8 ? 2 : 1;
  const Rows rows(scaled);
  const uint64_t matrices =
      element_count(shape) / std::max<uint64_t>(1, rows.of_matrix * rows.columns);
  if (element_count(values->shape) * per_byte != element_count(shape) || rows.columns % per_byte ||
      element_count(scales->shape) != matrices * rows.scale_rows * rows.scale_columns) {
    throw Error(ErrorCode::Corrupt, {.file = scales->file, .key = scales->key},
                "does not have a scale for each block of " + escaped(values->key));
  }
  TensorEntry entry{.file = {}, .key = std::move(key), .dtype = type, .shape = shape, .chunks = {}};
  entry.chunks.push_back(chunk_of_computed(entry, file));
  return entry;
}

std::shared_ptr<const PayloadSource> with_products(const PayloadSource& source, uint32_t first_file,
                                                   std::vector<Scaled> products) {
  std::vector<ComputedTensor> tensors;
  std::string shown;
  for (Scaled& scaled : products) {
    if (shown.empty()) shown = source.file_name(scaled.values->chunks[0].region.file);
    const uint64_t element_bytes = bytes_per_element(scaled.type);
    auto made = std::make_shared<const Products>(source, std::move(scaled));
    tensors.push_back({element_bytes, [made](uint64_t first, std::span<std::byte> out) {
                         made->fill(first, out);
                       }});
  }
  return with_computed(source, first_file, std::move(tensors), std::move(shown));
}

std::shared_ptr<const PayloadSource> with_computed(const PayloadSource& source, uint32_t first_file,
                                                   std::vector<ComputedTensor> tensors,
                                                   std::string shown) {
  return std::make_shared<ComputedPayloads>(source, first_file, std::move(tensors),
                                            std::move(shown));
}

Chunk chunk_of_computed(const TensorEntry& tensor, uint32_t file) {
  return {whole(tensor.shape), {.file = file, .bytes = {0, count_bytes(tensor)}}};
}

}  // namespace ckpt
