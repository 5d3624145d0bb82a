#include "report/value_signature.h"

#include <bit>
#include <cstdint>

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr int kNestingMax = 8;

std::optional<std::string> signature_at(const Value& value, int depth) {
  const auto kind = std::to_string(static_cast<int>(value.kind())) + ":";
  switch (value.kind()) {
    case Kind::None: return kind;
    case Kind::Bool:
    case Kind::Int: return kind + std::to_string(value.as_int());
    case Kind::Float: return kind + std::to_string(std::bit_cast<uint64_t>(value.as_float()));
    case Kind::BigInt:
    case Kind::Str: return kind + std::to_string(value.text().size()) + std::string(value.text());
    case Kind::List:
    case Kind::Tuple: break;
    default: return std::nullopt;
  }
  std::string signature = kind + "(";
  for (size_t i = 0; i < value.size() && depth < kNestingMax; ++i) {
    const auto element = signature_at(value[i], depth + 1);
    if (!element) return std::nullopt;
    signature += *element + ",";
  }
  return depth < kNestingMax ? std::optional(signature + ")") : std::nullopt;
}

}  // namespace

std::optional<std::string> signature_of(const Value& value) { return signature_at(value, 0); }

}  // namespace optim
