#include "digest/quantile_sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "model/element.h"

namespace ckpt {
namespace {

constexpr int kFractionBitsOfDouble = 52;

bool is_whole_number(DType dtype) {
  const std::string_view type = name(dtype);
  return type == "bool" || type.starts_with("int") || type.starts_with("uint");
}

}  // namespace

QuantileSketch::Table& QuantileSketch::table(size_t index) {
  if (!tables_[index]) tables_[index] = std::make_unique<Table>();
  return *tables_[index];
}

inline void QuantileSketch::count(double value) {
  const auto bits = std::bit_cast<uint64_t>(value) >> (kFractionBitsOfDouble - kFractionBits);
  const size_t index = bits >> kFractionBits;
  if (index % kNegative == kNotFinite) return;
  ++table(index)[bits % kBuckets];
  ++count_;
}

void QuantileSketch::add(DType dtype, std::span<const std::byte> elements) {
  visit_element(dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr size_t kBytes = sizeof(typename Element::Bits);
    for (size_t at = 0; at < elements.size(); at += kBytes) {
      count(Element::value(load_bits<Element>(elements.data() + at)));
    }
  });
}

void QuantileSketch::add(const QuantileSketch& other) {
  count_ += other.count_;
  for (size_t i = 0; i < kTables; ++i) {
    if (!other.tables_[i]) continue;
    Table& own = table(i);
    for (size_t j = 0; j < kBuckets; ++j) own[j] += (*other.tables_[i])[j];
  }
}

double QuantileSketch::value_at(unsigned percent, DType dtype) const {
  if (count_ == 0) return NAN;
  const uint64_t hundredths = count_ % 100 * percent;
  uint64_t left = count_ / 100 * percent + hundredths / 100 + (hundredths % 100 != 0 ? 1 : 0);
  left = std::max<uint64_t>(left, 1);
  const auto value_of = [&](size_t index, size_t bucket) {
    const auto bits = uint64_t{index << kFractionBits | bucket}
                      << (kFractionBitsOfDouble - kFractionBits);
    if (index % kNegative == 0) return 0.0;  // less than any normal number
    const auto half = uint64_t{1} << (kFractionBitsOfDouble - kFractionBits - 1);
    const uint64_t bytes = bytes_per_element(dtype);
    const bool has_more_bits = bytes > 2 || (bytes == 2 && is_whole_number(dtype));
    const auto middle = std::bit_cast<double>(has_more_bits ? bits | half : bits);
    return is_whole_number(dtype) ? std::trunc(middle) : middle;
  };
  for (size_t index = kTables; index-- > kNegative;) {
    for (size_t bucket = kBuckets; tables_[index] && bucket-- > 0;) {
      const uint64_t count = (*tables_[index])[bucket];
      if (left <= count) return value_of(index, bucket);
      left -= count;
    }
  }
  for (size_t index = 0; index < kNegative; ++index) {
    for (size_t bucket = 0; tables_[index] && bucket < kBuckets; ++bucket) {
      const uint64_t count = (*tables_[index])[bucket];
      if (left <= count) return value_of(index, bucket);
      left -= count;
    }
  }
  return NAN;
}

}  // namespace ckpt
