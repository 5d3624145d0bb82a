#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ckpt {

// A parameter, in the order of the model's state dict.
struct UnitParam {
  std::string name;  // "layers.0.up.weight": steps are modules
  uint64_t elements = 0;
  bool may_be_shared = false;  // has the content of an earlier one: tied, and then not there twice
};

// A model's modules, each behind the one that it is in; the root first.
struct ModuleTree {
  struct Module {
    size_t parent = 0;
    std::vector<size_t> params, modules;  // its own, in the order of the state dict
  };
  std::vector<Module> modules;
  bool is_too_deep = false;
};
ModuleTree module_tree(std::span<const UnitParam> params);

}  // namespace ckpt
