// A tensor's rows and columns as hashes of their values.
#include <algorithm>
#include <bit>
#include <cstddef>

#include <ckpt/box.h>
#include <ckpt/hash.h>
#include <ckpt/rounding.h>
#include <ckpt/tensor_stream.h>

namespace ckpt {
namespace {

constexpr uint64_t kBase = 0x9E3779B97F4A7C15, kMix = 0xD6E8FEB86659FD93;
constexpr uint64_t kPieceBytes = 4 << 20;

uint64_t mixed(float value) {
  const uint64_t product = (uint64_t{std::bit_cast<uint32_t>(value)} + 1) * kMix;
  return product ^ (product >> 32);
}

uint64_t finished(uint64_t sum) {
  sum = (sum ^ (sum >> 32)) * kMix;
  sum ^= sum >> 29;
  return sum == VectorPrint::kNothing ? 1 : sum;
}

float rounded(float value, DType type) {
  if (type == DType::Float32) return value;
  return widened(type,
                 type == DType::BFloat16 ? round_to_bfloat16(value) : round_to_float16(value));
}

class Printer {
 public:
  explicit Printer(const TensorEntry& tensor)
      : type_(tensor.dtype),
        row_size_(tensor.shape.empty() ? 1 : tensor.shape.back()),
        column_size_(tensor.shape.size() < 2 ? 1 : tensor.shape[tensor.shape.size() - 2]),
        is_vector_(tensor.shape.size() < 2) {
    made_.is_constant = true;
    if (!is_vector_) sums_.resize(row_size_);
  }

  // Whole rows.
  template <DType kType>
  void add(std::span<const std::byte> bytes) {
    values_.resize(row_size_);
    const uint64_t row_bytes = row_size_ * bytes_per_element(kType);
    for (size_t at = 0; at < bytes.size(); at += row_bytes) {
      for (size_t i = 0; i < row_size_; ++i) {
        values_[i] = float_at(kType, bytes.data() + at + i * bytes_per_element(kType));
      }
      add_row();
    }
  }

  VectorPrint finish() {
    made_.whole = finished(made_.whole);
    made_.plus_one = finished(made_.plus_one);
    made_.minus_one = finished(made_.minus_one);
    return std::move(made_);
  }

 private:
  void add_row() {
    const float first = values_[0];
    if (!has_first_) made_.first = first;
    has_first_ = true;
    uint64_t sum = 0;
    bool is_constant = true;
    for (const float value : values_) {
      sum = sum * kBase + mixed(value);
      is_constant &= value == first;
    }
    made_.rows.push_back(is_constant ? VectorPrint::kNothing : finished(sum));
    made_.is_constant &= is_constant && first == made_.first;
    made_.whole = (made_.whole ^ finished(sum)) * kBase;
    if (is_vector_) add_shifted();
    if (!is_vector_) add_to_columns();
  }
  void add_shifted() {
    uint64_t plus = 0, minus = 0;
    for (const float value : values_) {
      plus = plus * kBase + mixed(rounded(value + 1, type_));
      minus = minus * kBase + mixed(rounded(value - 1, type_));
    }
    made_.plus_one = (made_.plus_one ^ finished(plus)) * kBase;
    made_.minus_one = (made_.minus_one ^ finished(minus)) * kBase;
  }
  void add_to_columns() {
    if (row_ == 0) {
      firsts_ = values_;
      differ_.assign(row_size_, 0);
      std::ranges::fill(sums_, 0);
    }
    for (size_t i = 0; i < row_size_; ++i) {
      sums_[i] = sums_[i] * kBase + mixed(values_[i]);
      differ_[i] |= static_cast<uint8_t>(values_[i] != firsts_[i]);
    }
    if (++row_ < column_size_) return;
    row_ = 0;
    for (size_t i = 0; i < row_size_; ++i) {
      made_.columns.push_back(differ_[i] ? finished(sums_[i]) : VectorPrint::kNothing);
    }
  }

  DType type_;
  size_t row_size_, column_size_;
  bool is_vector_, has_first_ = false;
  size_t row_ = 0;
  std::vector<float> values_, firsts_;
  std::vector<uint8_t> differ_;
  std::vector<uint64_t> sums_;
  VectorPrint made_;
};

}  // namespace

VectorPrint print_of(const TensorEntry& tensor, const PayloadSource& source) {
  Printer printer(tensor);
  TensorStream stream(tensor, source);
  const uint64_t row_bytes =
      (tensor.shape.empty() ? 1 : tensor.shape.back()) * bytes_per_element(tensor.dtype);
  if (stream.left_bytes() == 0) return printer.finish();
  std::vector<std::byte> piece(std::max<uint64_t>(1, kPieceBytes / row_bytes) * row_bytes);
  while (const uint64_t left = stream.left_bytes()) {
    const auto part = std::span(piece).first(std::min<uint64_t>(left, piece.size()));
    stream.read(part);
    with_constant(tensor.dtype, [&](auto type) { printer.add<decltype(type)::value>(part); });
  }
  return printer.finish();
}

uint64_t count_vectors(const Extents& shape) {
  const uint64_t count = element_count(shape);
  if (shape.size() < 2 || count == 0) return 1;
  return count / shape.back() + count / shape[shape.size() - 2];
}

}  // namespace ckpt
