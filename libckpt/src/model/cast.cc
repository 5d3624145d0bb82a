// Which tensors get another type.
#include <ckpt/cast.h>

#include <algorithm>

#include <ckpt/error.h>
#include <ckpt/target.h>

#include "base/text.h"

namespace ckpt {
namespace {

std::string text_of(DType dtype) { return std::string(name(dtype)); }

std::string tensors(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " tensor" : " tensors");
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

}  // namespace ckpt
