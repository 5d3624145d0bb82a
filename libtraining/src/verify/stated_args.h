#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <ckpt/value.h>

namespace optim {

// What args say under a name. nullopt where they do not have it, or have it as something else:
// nothing follows from that.
class StatedArgs {
 public:
  explicit StatedArgs(ckpt::Value args) : args_(args) {}

  std::optional<uint64_t> size(std::string_view name) const;  // a number above 0
  std::optional<bool> flag(std::string_view name) const;      // True or False
  bool is_set(std::string_view name) const { return flag(name).value_or(false); }
  std::optional<std::string_view> word(std::string_view name) const;  // a text
  std::optional<bool> is_number(std::string_view name) const;         // false: None
  // "8", "False", "'rope'", "not set": to come behind "is ".
  std::string text(std::string_view name) const;
  std::optional<ckpt::Value> find(std::string_view name) const { return args_.find(name); }

 private:
  ckpt::Value args_;
};

}  // namespace optim
