#include <training/module_table.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <ckpt/text.h>

#include "report/logical_names.h"

namespace optim {
namespace {

constexpr size_t kRangesShown = 3;

// As much of a tensor's name as names its module.
struct ModuleName {
  std::string list;                // "decoder.layers": what is numbered; or the module
  std::optional<uint64_t> number;  // of a layer
  auto operator<=>(const ModuleName&) const = default;
};

// Calls `look(end, step)` for each step of a dotted name, until it returns false.
template <class Look>
void for_each_step(std::string_view name, Look look) {
  for (size_t start = 0; start <= name.size();) {
    const size_t end = std::min(name.find('.', start), name.size());
    if (!look(end, name.substr(start, end - start))) return;
    start = end + 1;
  }
}

// The layer that a tensor is in; nullopt where its name has no number.
std::optional<ModuleName> layer_of(std::string_view name) {
  std::optional<ModuleName> place;
  size_t before = 0;
  for_each_step(name, [&](size_t end, std::string_view step) {
    const auto number = ckpt::number_in<uint64_t>(step);
    if (number && end < name.size())
      place = ModuleName{std::string(name.substr(0, before)), number};
    before = end;
    return !place;
  });
  return place;
}

// The names above a list: of "decoder.layers" decoder and decoder.layers.
void add_containers(std::string_view list, std::set<std::string, std::less<>>& containers) {
  for_each_step(list, [&](size_t end, std::string_view) {
    containers.emplace(list.substr(0, end));
    return true;
  });
}

// Of a tensor outside of all layers: the shortest beginning of its name that is not a container.
ModuleName module_of(std::string_view name, const std::set<std::string, std::less<>>& containers) {
  size_t module_end = name.size();
  for_each_step(name, [&](size_t end, std::string_view) {
    module_end = end;
    return containers.contains(name.substr(0, end)) && end < name.size();
  });
  return {std::string(name.substr(0, module_end)), std::nullopt};
}

void add(const LogicalTensor& tensor, ModuleSize& size) {
  if (tensor.role == KeyKind::OptimizerState) {
    size.optimizer_bytes += tensor.count_bytes;
    return;
  }
  size.model_bytes += tensor.count_bytes;
  if (holds_parameters(tensor.dtype)) {
    size.parameter_count += ckpt::element_count(tensor.shape);
  }
}

// "0-3,5", and at most kRangesShown ranges.
std::string ranges_text(const std::vector<uint64_t>& numbers) {
  std::string text;
  size_t ranges = 0;
  for (size_t i = 0; i < numbers.size(); ++ranges) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (ranges == kRangesShown) return text + ",...";
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

// Of layers of one list; `size`: of each.
ModuleRow row_of(const std::string& list, const ModuleSize& size,
                 const std::vector<uint64_t>& numbers) {
  const uint64_t count = numbers.size();
  return {(list.empty() ? "" : list + ".") + ranges_text(numbers),
          {size.parameter_count * count, size.model_bytes * count, size.optimizer_bytes * count},
          static_cast<uint32_t>(count)};
}

std::vector<ModuleRow> join_equal(const std::map<ModuleName, ModuleSize>& sizes) {
  std::vector<ModuleRow> rows;
  // Numbers of the layers of a list that are equal.
  std::map<std::pair<std::string, ModuleSize>, std::vector<uint64_t>> joined;
  for (const auto& [place, size] : sizes) {  // of one list in the order of its numbers
    if (place.number) {
      joined[{place.list, size}].push_back(*place.number);
    } else {
      rows.push_back({place.list, size});
    }
  }
  for (const auto& [layers, numbers] : joined) {
    rows.push_back(row_of(layers.first, layers.second, numbers));
  }
  return rows;
}

uint64_t all_bytes(const ModuleRow& row) { return row.size.model_bytes + row.size.optimizer_bytes; }

}  // namespace

ModuleTable make_module_table(std::span<const LogicalTensor> tensors) {
  std::set<std::string, std::less<>> containers;
  for (const LogicalTensor& tensor : tensors) {
    if (const auto layer = layer_of(tensor.name)) add_containers(layer->list, containers);
  }
  ModuleTable table;
  std::map<ModuleName, ModuleSize> sizes;
  for (const LogicalTensor& tensor : tensors) {
    const bool is_state = tensor.role == KeyKind::OptimizerState;
    if (!is_state && tensor.role != KeyKind::Model) continue;
    if (is_state && tensor.name.empty()) {
      table.unnamed_optimizer_bytes += tensor.count_bytes;
      continue;
    }
    const auto layer = layer_of(tensor.name);
    add(tensor, sizes[layer ? *layer : module_of(tensor.name, containers)]);
  }
  table.rows = join_equal(sizes);
  std::ranges::stable_sort(table.rows, [](const ModuleRow& a, const ModuleRow& b) {
    if (a.size.parameter_count != b.size.parameter_count) {
      return a.size.parameter_count > b.size.parameter_count;
    }
    if (all_bytes(a) != all_bytes(b)) return all_bytes(a) > all_bytes(b);
    return natural_less(a.name, b.name);
  });
  return table;
}

ModuleSize sum_of(std::span<const ModuleRow> rows) {
  ModuleSize sum;
  for (const ModuleRow& row : rows) {
    sum.parameter_count += row.size.parameter_count;
    sum.model_bytes += row.size.model_bytes;
    sum.optimizer_bytes += row.size.optimizer_bytes;
  }
  return sum;
}

uint64_t count_parameters(std::span<const LogicalTensor> tensors) {
  ModuleSize size;
  for (const LogicalTensor& tensor : tensors) {
    if (tensor.role == KeyKind::Model) add(tensor, size);
  }
  return size.parameter_count;
}

std::vector<const LogicalTensor*> largest_tensors(std::span<const LogicalTensor> tensors,
                                                  size_t limit) {
  const bool has_model = std::ranges::any_of(
      tensors, [](const LogicalTensor& tensor) { return tensor.role == KeyKind::Model; });
  std::vector<const LogicalTensor*> largest;
  for (const LogicalTensor& tensor : tensors) {
    if (!has_model || tensor.role == KeyKind::Model) largest.push_back(&tensor);
  }
  const auto end = largest.begin() + static_cast<ptrdiff_t>(std::min(limit, largest.size()));
  std::ranges::partial_sort(largest, end, [](const LogicalTensor* a, const LogicalTensor* b) {
    if (a->count_bytes != b->count_bytes) return a->count_bytes > b->count_bytes;
    return natural_less(name_or_key(*a), name_or_key(*b));
  });
  largest.erase(end, largest.end());
  return largest;
}

}  // namespace optim
