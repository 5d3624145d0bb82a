#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_rules.h"

// Numbers of layers and experts in names, for tables that are learned: which are known in the
// model's, and found in the folder's.
namespace optim {

struct NameNumbers {
  std::optional<uint32_t> layer, further, expert;  // `further`: of multi-token prediction
  bool operator==(const NameNumbers&) const = default;
  auto operator<=>(const NameNumbers&) const = default;
};
struct NumberedName {
  std::string pattern;  // with {layer}, {mtp} and {expert} in the place of numbers
  NameNumbers numbers;
};

// Of Megatron's modules.
NumberedName numbered_model_name(std::string_view name);
// A pattern, and what Megatron's modules of the other implementation call the same.
std::vector<std::string> names_of_both(const std::string& pattern, const ModelRules& rules);

// Which numbers in keys of a folder are those of layers and experts, by keys whose tensors are
// known to be of one.
class FolderNumbers {
 public:
  explicit FolderNumbers(uint32_t layer_count) : layer_count_(layer_count) {}
  // `either`: it is of one of these.
  void learn(std::string_view key, const std::vector<NameNumbers>& either);
  // Numbers of neither stay as they are.
  NumberedName numbered(std::string_view key) const;

 private:
  uint32_t layer_count_;
  struct Roles {
    // By names whose number it is, by such of which one has it, by those of which none has it.
    unsigned proven = 0, seen = 0, excluded = 0;
  };
  std::map<std::string, Roles> roles_;  // by what stands in front of a number
};

}  // namespace optim
