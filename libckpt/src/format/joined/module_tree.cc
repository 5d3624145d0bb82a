#include "format/joined/module_tree.h"

#include <map>
#include <utility>

namespace ckpt {
namespace {

constexpr size_t kModuleDepthMax = 64;

}  // namespace

ModuleTree module_tree(std::span<const UnitParam> params) {
  ModuleTree tree{{{}}};
  std::map<std::pair<size_t, std::string>, size_t> places;  // by parent and name
  for (size_t param = 0; param < params.size(); ++param) {
    const std::string& name = params[param].name;
    size_t module = 0, begin = 0, depth = 0;
    for (size_t dot = 0; (dot = name.find('.', begin)) != std::string::npos; begin = dot + 1) {
      tree.is_too_deep = tree.is_too_deep || ++depth > kModuleDepthMax;
      const auto [known, is_new] =
          places.try_emplace({module, name.substr(begin, dot - begin)}, tree.modules.size());
      if (is_new) {
        tree.modules[module].modules.push_back(tree.modules.size());
        tree.modules.push_back({module, {}, {}});
      }
      module = known->second;
    }
    tree.modules[module].params.push_back(param);
  }
  return tree;
}

}  // namespace ckpt
