#include "format/torch_dist/dist_shape.h"

#include <cstring>

#include "format/torch_dist/dist_bytes.h"

namespace ckpt {
namespace {

const std::byte* read_value(const std::byte* at, DistShape::Value& value) {
  switch (value.hole) {
    case DistShape::Hole::None: return op_at(at) == pickle::Op::None ? at + 1 : nullptr;
    case DistShape::Hole::Number: {
      int64_t number = 0;
      at = read_int(at, number);
      value.numbers[0] = static_cast<uint64_t>(number);
      return at;
    }
    case DistShape::Hole::Recalled: return read_get(at, value.numbers[0]);
    case DistShape::Hole::Text: return read_short_text(at, value.text);
    case DistShape::Hole::Numbers: break;
  }
  for (size_t i = 0; i < value.count; ++i) {
    int64_t number = 0;
    at = read_int(at, number);
    if (at == nullptr || number < 0) return nullptr;
    value.numbers[i] = static_cast<uint64_t>(number);
  }
  return at;
}

}  // namespace

void DistShape::add_literal(std::span<const std::byte> bytes) {
  Literal& literal = literals_[holes_];
  if (literal.count_bytes + bytes.size() > kLiteralMax) {
    is_too_long_ = true;
    return;
  }
  auto* words = reinterpret_cast<std::byte*>(literal.words.data()) + literal.count_bytes;
  auto* masks = reinterpret_cast<std::byte*>(literal.masks.data()) + literal.count_bytes;
  std::memcpy(words, bytes.data(), bytes.size());
  std::memset(masks, 0xff, bytes.size());
  literal.count_bytes += static_cast<uint32_t>(bytes.size());
}

void DistShape::add_hole(Hole hole, size_t count) {
  if (holes_ == kHolesMax || count > kNumbersMax) {
    is_too_long_ = true;
    return;
  }
  kinds_[holes_] = hole;
  counts_[holes_++] = static_cast<uint8_t>(count);
}

bool DistShape::Literal::is_at(const std::byte* at) const {
  uint64_t difference = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    difference |= (number_at<uint64_t>(at + 8 * i) ^ words[i]) & masks[i];
  }
  return difference == 0;
}

const std::byte* DistShape::match(const std::byte* at, std::span<Value, kHolesMax> values) const {
  for (size_t i = 0; i < holes_; ++i) {
    if (!literals_[i].is_at(at)) return nullptr;
    values[i].hole = kinds_[i];
    values[i].count = counts_[i];
    at = read_value(at + literals_[i].count_bytes, values[i]);
    if (at == nullptr) return nullptr;
  }
  if (!literals_[holes_].is_at(at)) return nullptr;
  return at + literals_[holes_].count_bytes;
}

}  // namespace ckpt
