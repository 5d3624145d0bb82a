#include <training/diff_summary.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ckpt/printed.h>
#include <training/key_kind.h>

#include "report/logical_names.h"

namespace optim {
namespace {

using ckpt::DifferenceKind;

// More is worse.
auto badness(const ModuleDifference& difference) {
  return std::tuple(difference.structural_count - difference.rounded_count,
                    difference.nonfinite_count, difference.weight_count != 0,
                    difference.relative_norm, difference.max_abs, difference.different_count);
}

template <class Difference>
ModuleDifference alone(const Difference& of) {
  ModuleDifference difference;
  difference.different_count = 1;
  difference.worst = ckpt::qualified_key(of.file, of.key);
  difference.structural_count = of.kind == DifferenceKind::Value ? 0 : 1;
  if constexpr (std::is_same_v<Difference, ckpt::TensorDifference>) {
    difference.rounded_count = of.is_rounded ? 1 : 0;
    if (!of.value) return difference;
    difference.nonfinite_count = of.value->nonfinite_count;
    difference.max_abs = of.value->max_abs;
    difference.max_rel = of.value->max_rel;
    difference.max_ulp_distance = of.value->max_ulp_distance;
    difference.relative_norm = of.value->relative_norm();
    if (kind_of_key(of.file, of.key) == KeyKind::Model) {
      difference.products = of.value->products;
      difference.weight_count = 1;
    }
  }
  return difference;
}

using Products = ckpt::ValueDifference::Products;

std::optional<Products> sum_of(const std::optional<Products>& x, const std::optional<Products>& y) {
  if (!x || !y) return x ? x : y;
  return Products{x->a_b + y->a_b, x->a_a + y->a_a, x->b_b + y->b_b};
}

class Modules {
 public:
  template <class Entry>
  void count(const Entry& entry, bool has_elements) {
    if (!seen_.emplace(entry.file, entry.key).second) return;
    ModuleDifference& module = of(entry.key);
    ++module.compared_count;
    if (has_elements) ++module.value_count;
  }

  template <class Difference>
  void add(const Difference& difference) {
    const ModuleDifference added = alone(difference);
    auto& [module, worst] = by_name_[module_of_key(difference.key)];
    if (!worst || badness(added) > badness(*worst)) worst = added;
    module.different_count += 1;
    module.structural_count += added.structural_count;
    module.rounded_count += added.rounded_count;
    if constexpr (std::is_same_v<Difference, ckpt::TensorDifference>) {
      module.value_count -=
          std::min(module.value_count, added.structural_count - added.rounded_count);
    }
    module.nonfinite_count += added.nonfinite_count;
    add_norm(added, module);
    module.max_abs = std::max(module.max_abs, added.max_abs);
    module.max_rel = std::max(module.max_rel, added.max_rel);
    module.max_ulp_distance = std::max(module.max_ulp_distance, added.max_ulp_distance);
    module.products = sum_of(module.products, added.products);
  }

  DiffSummary finish() {
    DiffSummary summary{{}, by_name_.size()};
    for (auto& [name, found] : by_name_) {
      if (found.module.different_count == 0) continue;
      found.module.module = name;
      found.module.worst = found.worst->worst;
      found.module.worst_is_structural = found.worst->structural_count > found.worst->rounded_count;
      summary.modules.push_back(std::move(found.module));
    }
    std::ranges::stable_sort(summary.modules,
                             [](const auto& x, const auto& y) { return badness(x) > badness(y); });
    return summary;
  }

 private:
  struct Found {
    ModuleDifference module;
    std::optional<ModuleDifference> worst;
  };
  static void add_norm(const ModuleDifference& added, ModuleDifference& module) {
    const bool is_first_weight = added.weight_count != 0 && module.weight_count == 0;
    const bool is_mere_state = added.weight_count == 0 && module.weight_count != 0;
    module.weight_count += added.weight_count;
    if (is_mere_state) return;
    module.relative_norm =
        is_first_weight ? added.relative_norm : std::max(module.relative_norm, added.relative_norm);
  }

  ModuleDifference& of(const std::string& key) { return by_name_[module_of_key(key)].module; }

  std::set<std::pair<std::string_view, std::string_view>> seen_;
  std::map<std::string, Found> by_name_;
};

}  // namespace

DiffSummary summarize(const Compared& compared) {
  Modules modules;
  for (const ckpt::Inventory* inventory : {&compared.a, &compared.b}) {
    for (const ckpt::TensorEntry& tensor : inventory->tensors) {
      modules.count(tensor, !compared.keys_only);
    }
    for (const ckpt::ObjectTree& object : inventory->objects) modules.count(object, false);
  }
  for (const auto& tensor : compared.differences.tensors) modules.add(tensor);
  for (const auto& object : compared.differences.objects) modules.add(object);
  return modules.finish();
}

void sort_worst_first(std::vector<ckpt::TensorDifference>& tensors) {
  std::ranges::stable_sort(
      tensors, [](const auto& x, const auto& y) { return badness(alone(x)) > badness(alone(y)); });
}

}  // namespace optim
