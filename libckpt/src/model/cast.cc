// Which tensors get another type; rounding to fp16.
#include <ckpt/cast.h>

#include <ckpt/error.h>
#include <ckpt/rounding.h>
#include <ckpt/target.h>

#include "base/text.h"

namespace ckpt {
namespace {

std::string text_of(DType dtype) { return std::string(name(dtype)); }

std::string tensors(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " tensor" : " tensors");
}

constexpr uint32_t kInfinity = 0x7F800000;
constexpr uint32_t kHalfOverflow = 0x477FF000;   // rounds to infinity: halfway above 65504
constexpr uint32_t kHalfNormalMin = 0x38800000;  // 2^-14
constexpr int kHalfExponentBias = 15, kFloatExponentBias = 127, kMantissaShift = 13;

// `bits` shifted right with round to nearest, ties to even.
uint32_t shift_rounding(uint32_t bits, int shift) {
  const uint32_t half = uint32_t{1} << (shift - 1);
  const uint32_t odd = bits >> shift & 1;
  return (bits + half - 1 + odd) >> shift;
}

}  // namespace

bool can_cast(DType from, DType to) {
  if (from == DType::Int16 || to == DType::Int16) {
    return from == DType::Float32 || to == DType::Float32;
  }
  return can_round(from) && can_round(to);
}

TensorEntry with_cast(TensorEntry tensor, DType to, Cast cast) {
  const bool has_sum =
      tensor.cast && tensor.cast->added != 0 && tensor.cast->stored == tensor.dtype;
  cast.stored = tensor.dtype;
  if (has_sum) cast.added += tensor.cast->added;
  if ((tensor.cast && !has_sum) || !can_cast(tensor.dtype, to)) {
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = tensor.key},
                "is of type " + text_of(tensor.dtype) + ", which cannot become " + text_of(to));
  }
  tensor.dtype = to;
  tensor.cast = std::make_shared<const Cast>(std::move(cast));
  return tensor;
}

TypeChange::TypeChange(std::span<const TypeRule> rules) {
  for (const auto& [keys, type] : rules) {
    if (!can_round(type)) {
      throw Error(ErrorCode::InvalidArgument, {},
                  "--dtype gives tensors the type " + std::string(name(type)) +
                      ", which they get in a Hugging Face folder alone, with scales of blocks",
                  "--to huggingface --dtype fp8-block128");
    }
    if (!keys.empty()) named_.push_back({KeyPattern(keys), type});
    if (keys.empty()) all_.push_back(type);
  }
  if (all_.size() < 2) return;
  throw Error(ErrorCode::InvalidArgument, {},
              "--dtype gives all tensors " + text_of(all_[0]) + " and " + text_of(all_[1]),
              "--dtype KEY=TYPE is for some of them");
}

std::shared_ptr<const TensorEntry> TypeChange::apply(std::shared_ptr<const TensorEntry> tensor,
                                                     std::string_view key, bool keeps_type) {
  if (named_.empty() && all_.empty()) return tensor;
  keys_.emplace_back(key);
  const bool can_change = can_round(tensor->dtype);
  const Named* first = nullptr;
  for (Named& one : named_) {
    if (one.keys.match({{}, key}) == KeyMatch::None) continue;
    if (first == nullptr) first = &one;
    ++one.count;
    one.cast_count += can_change ? 1 : 0;
  }
  if (first == nullptr && all_.empty()) return tensor;
  if (!can_change) ++others_[tensor->dtype];
  if (first == nullptr && keeps_type && can_change && tensor->dtype != all_[0]) {
    kept_.emplace_back(key);
    return tensor;
  }
  const DType to = first != nullptr ? first->type : all_[0];
  if (!can_change || tensor->dtype == to) return tensor;
  ++casts_[{tensor->dtype, to}];
  return std::make_shared<const TensorEntry>(with_cast(*tensor, to, {.may_overflow = true}));
}

void TypeChange::report(Target& target) const {
  for (const Named& one : named_) {
    if (one.cast_count != 0) continue;
    if (one.count == 0) {
      std::vector<KeyName> names;
      for (const std::string& key : keys_) names.push_back({{}, key});
      refuse_unknown_key(one.keys.typed(), names);
    }
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = one.keys.typed()},
                "--dtype changes float32, bfloat16 and float16, and this names no tensor of them");
  }
  for (const auto& [types, count] : casts_) {
    const auto& [from, to] = types;
    const std::string line = tensors(count) + ": " + text_of(from) + " to " + text_of(to);
    target.casts.push_back(line);
    if (is_widening(to)) target.warnings.push_back(line + ", every value is kept");
    if (!is_widening(to)) target.not_carried.push_back({"bits of " + line, "rounded, as asked"});
  }
  if (!kept_.empty()) {
    target.warnings.push_back(tensors(kept_.size()) +
                              " keep their type, which the model computes with, such as " +
                              escaped(kept_[0]) + "; --dtype KEY=TYPE changes them");
  }
  for (const auto& [type, count] : others_) {
    target.warnings.push_back(tensors(count) + " of type " + text_of(type) + ": not changed");
  }
}

uint16_t round_to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > kInfinity) return kFloat16NaN;
  if (magnitude >= kHalfOverflow) return sign | 0x7C00;
  if (magnitude >= kHalfNormalMin) {
    constexpr uint32_t kRebias = static_cast<uint32_t>(kFloatExponentBias - kHalfExponentBias)
                                 << 23;
    return static_cast<uint16_t>(sign | shift_rounding(magnitude - kRebias, kMantissaShift));
  }
  const int exponent = static_cast<int>(magnitude >> 23);
  const int shift = 126 - exponent;  // a subnormal half counts in units of 2^-24
  if (shift > 24) return sign;
  const uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  return static_cast<uint16_t>(sign | shift_rounding(mantissa, shift));
}

}  // namespace ckpt
