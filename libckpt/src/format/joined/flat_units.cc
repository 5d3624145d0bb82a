#include "format/joined/flat_units.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace ckpt {
namespace {

constexpr size_t kDepthMax = 64;
constexpr size_t kChoicesMax = 1 << 20;  // that are weighed

struct Module {
  std::vector<const UnitParam*> params;
  std::vector<size_t> modules;
  uint64_t elements = 0;  // of all parameters inside
  bool may_share = false;
};

// By the number of the unit behind a module, and the elements that it leaves to the unit around it:
// the sizes of the units inside. 0: choices differ.
using Choices = std::map<std::pair<size_t, uint64_t>, std::vector<uint64_t>>;

class Search {
 public:
  Search(std::span<const UnitParam> model, std::span<const std::optional<uint64_t>> sizes,
         uint64_t parts)
      : sizes_(sizes), parts_(parts) {
    modules_.emplace_back();
    for (const UnitParam& param : model) add(param);
    for (const auto& size : sizes) {
      smallest_ = std::min(smallest_, size && *size > 0 ? (*size - 1) * parts + 1 : 1);
    }
  }

  FlatUnits run() {
    if (is_too_deep_) return {{}, "modules are nested too deeply"};
    const Choices& all = choices(0, 0);
    if (spent_ > kChoicesMax) return {{}, "too many choices of units fit the sizes"};
    const auto found = all.find({sizes_.size(), 0});
    if (found == all.end())
      return {{}, "no choice of modules has the sizes of its flat parameters"};
    for (size_t unit = 0; unit < sizes_.size(); ++unit) {
      if (found->second[unit] != 0 || !sizes_[unit]) continue;
      return {{},
              "the sizes of modules fit flat parameter " + std::to_string(unit) +
                  " in more than one way"};
    }
    return {found->second, {}};
  }

 private:
  void add(const UnitParam& param) {
    size_t module = 0, begin = 0, depth = 0;
    count(param, module);
    for (size_t dot = 0; (dot = param.name.find('.', begin)) != std::string::npos;) {
      is_too_deep_ = is_too_deep_ || ++depth > kDepthMax;
      module = module_in(module, param.name.substr(begin, dot - begin));
      begin = dot + 1;
      count(param, module);
    }
    modules_[module].params.push_back(&param);
  }

  void count(const UnitParam& param, size_t module) {
    modules_[module].elements += param.elements;
    modules_[module].may_share = modules_[module].may_share || param.may_be_shared;
  }

  size_t module_in(size_t parent, std::string name) {
    const auto [known, is_new] = places_.try_emplace({parent, std::move(name)}, modules_.size());
    if (!is_new) return known->second;
    modules_[parent].modules.push_back(modules_.size());
    modules_.emplace_back();
    return modules_.size() - 1;
  }

  // Of a module that is a unit or none, where `unit` is the number of the next one.
  const Choices& choices(size_t module, size_t unit) {
    const auto [known, is_new] = known_.try_emplace({module, unit});
    if (!is_new) return known->second;
    Choices made = inside(module, unit);
    if (unit < sizes_.size()) {
      for (auto& [end, sizes] : inside(module, unit + 1)) {
        const auto [next, own] = end;
        if (!fits(unit, own)) continue;
        sizes.insert(sizes.begin(), own);
        merge({next, 0}, std::move(sizes), made);
      }
    }
    return known->second = std::move(made);
  }

  bool fits(size_t unit, uint64_t elements) const {
    const auto& part = sizes_[unit];
    return elements > 0 && (!part || elements / parts_ + (elements % parts_ != 0) == *part);
  }

  bool is_of_one_choice(const Module& module) const {  // no unit fits into it
    return !module.may_share && module.elements < smallest_;
  }

  Choices inside(size_t module, size_t unit) {
    const Module& here = modules_[module];
    uint64_t certain = 0;
    for (const UnitParam* const param : here.params) {
      certain += param->may_be_shared ? 0 : param->elements;
    }
    for (const size_t child : here.modules) {
      certain += is_of_one_choice(modules_[child]) ? modules_[child].elements : 0;
    }
    Choices made{{{unit, certain}, {}}};
    for (const UnitParam* const param : here.params) {
      if (param->may_be_shared) made = with_shared(made, param->elements);
    }
    for (const size_t child : here.modules) {
      if (!is_of_one_choice(modules_[child])) made = with_module(made, child);
    }
    return made;
  }

  Choices with_shared(const Choices& made, uint64_t elements) {
    Choices with;
    for (const auto& [end, sizes] : made) {
      merge({end.first, end.second + elements}, sizes, with);
      merge(end, sizes, with);
    }
    return with;
  }

  Choices with_module(const Choices& made, size_t child) {
    Choices with;
    for (const auto& [end, sizes] : made) {
      for (const auto& [child_end, inner] : choices(child, end.first)) {
        std::vector<uint64_t> all = sizes;
        all.insert(all.end(), inner.begin(), inner.end());
        merge({child_end.first, end.second + child_end.second}, std::move(all), with);
      }
    }
    return with;
  }

  void merge(const Choices::key_type& end, std::vector<uint64_t> sizes, Choices& into) {
    if (++spent_ > kChoicesMax) return;
    const auto [known, is_new] = into.emplace(end, sizes);
    for (size_t i = 0; !is_new && i < sizes.size(); ++i) {
      if (known->second[i] != sizes[i]) known->second[i] = 0;
    }
  }

  std::span<const std::optional<uint64_t>> sizes_;
  uint64_t parts_, smallest_ = std::numeric_limits<uint64_t>::max();  // smallest: of a unit
  std::vector<Module> modules_;
  std::map<std::pair<size_t, std::string>, size_t> places_;  // of modules, by parent and name
  std::map<std::pair<size_t, size_t>, Choices> known_;
  size_t spent_ = 0;
  bool is_too_deep_ = false;
};

}  // namespace

FlatUnits find_flat_units(std::span<const UnitParam> model,
                          std::span<const std::optional<uint64_t>> part_elements, uint64_t parts) {
  return Search(model, part_elements, parts).run();
}

}  // namespace ckpt
