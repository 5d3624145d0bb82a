#include "verify/stated_args.h"

#include <ckpt/error.h>

namespace optim {

using ckpt::Kind;

std::optional<uint64_t> StatedArgs::size(std::string_view name) const {
  const auto value = find(name);
  const bool is_size = value && value->is(Kind::Int) && value->as_int() > 0;
  return is_size ? std::optional(static_cast<uint64_t>(value->as_int())) : std::nullopt;
}

std::optional<bool> StatedArgs::flag(std::string_view name) const {
  const auto value = find(name);
  return value && value->is(Kind::Bool) ? std::optional(value->as_bool()) : std::nullopt;
}

std::optional<std::string_view> StatedArgs::word(std::string_view name) const {
  const auto value = find(name);
  return value && value->is(Kind::Str) ? std::optional(value->text()) : std::nullopt;
}

std::optional<bool> StatedArgs::is_number(std::string_view name) const {
  const auto value = find(name);
  if (!value || (!value->is(Kind::Int) && !value->is_none())) return std::nullopt;
  return value->is(Kind::Int);
}

std::string StatedArgs::text(std::string_view name) const {
  const auto value = find(name);
  if (!value) return "not set";
  switch (value->kind()) {
    case Kind::Int: return std::to_string(value->as_int());
    case Kind::Bool: return value->as_bool() ? "True" : "not set";
    case Kind::Str: return "'" + ckpt::escaped(value->text()) + "'";
    case Kind::None: return "not set";
    default: return "another value";
  }
}

}  // namespace optim
