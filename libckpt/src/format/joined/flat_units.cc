#include "format/joined/flat_units.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace ckpt {
namespace {

constexpr size_t kChoicesMax = 1 << 20;  // that are weighed

struct Inside {  // of a module and those in it
  uint64_t elements = 0;
  bool may_share = false;
};

// By the number of the unit behind a module, and the elements that it leaves to the unit around it:
// the sizes of the units inside. 0: choices differ.
using Choices = std::map<std::pair<size_t, uint64_t>, std::vector<uint64_t>>;

class Search {
 public:
  Search(std::span<const UnitParam> model, std::span<const std::optional<uint64_t>> sizes,
         uint64_t parts)
      : model_(model), sizes_(sizes), parts_(parts), tree_(module_tree(model)) {
    inside_.resize(tree_.modules.size());
    for (size_t module = inside_.size(); module-- > 0;) add_up(module);
    for (const auto& size : sizes) {
      smallest_ = std::min(smallest_, size && *size > 0 ? (*size - 1) * parts + 1 : 1);
    }
  }

  FlatUnits run() {
    if (tree_.is_too_deep) return {{}, "modules are nested too deeply"};
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
  void add_up(size_t module) {
    Inside& here = inside_[module];
    for (const size_t param : tree_.modules[module].params) {
      here.elements += model_[param].elements;
      here.may_share = here.may_share || model_[param].may_be_shared;
    }
    for (const size_t child : tree_.modules[module].modules) {
      here.elements += inside_[child].elements;
      here.may_share = here.may_share || inside_[child].may_share;
    }
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

  bool is_of_one_choice(size_t module) const {  // no unit fits into it
    return !inside_[module].may_share && inside_[module].elements < smallest_;
  }

  Choices inside(size_t module, size_t unit) {
    const ModuleTree::Module& here = tree_.modules[module];
    uint64_t certain = 0;
    for (const size_t param : here.params) {
      certain += model_[param].may_be_shared ? 0 : model_[param].elements;
    }
    for (const size_t child : here.modules) {
      certain += is_of_one_choice(child) ? inside_[child].elements : 0;
    }
    Choices made{{{unit, certain}, {}}};
    for (const size_t param : here.params) {
      if (model_[param].may_be_shared) made = with_shared(made, model_[param].elements);
    }
    for (const size_t child : here.modules) {
      if (!is_of_one_choice(child)) made = with_module(made, child);
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

  std::span<const UnitParam> model_;
  std::span<const std::optional<uint64_t>> sizes_;
  uint64_t parts_, smallest_ = std::numeric_limits<uint64_t>::max();  // smallest: of a unit
  ModuleTree tree_;
  std::vector<Inside> inside_;  // of modules
  std::map<std::pair<size_t, size_t>, Choices> known_;
  size_t spent_ = 0;
};

}  // namespace

FlatUnits find_flat_units(std::span<const UnitParam> model,
                          std::span<const std::optional<uint64_t>> part_elements, uint64_t parts) {
  return Search(model, part_elements, parts).run();
}

}  // namespace ckpt
