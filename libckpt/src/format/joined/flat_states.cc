#include "format/joined/flat_states.h"

#include <algorithm>
#include <set>

#include <ckpt/printed.h>

#include "base/text.h"
#include "codec/python_values.h"
#include "format/joined/flat_units.h"
#include "format/values/nesting.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

using Counts = std::map<uint64_t, size_t>;                       // of ranks, by elements
using Sizes = std::map<std::string, std::map<int64_t, Counts>>;  // by state and parameter

uint64_t most_frequent(const Counts& counts) {
  return std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; })->first;
}

std::optional<Value> item_in(const Value& value, std::string_view name) {
  const auto mapping = as_mapping(value);
  return mapping ? mapping->find(name) : std::nullopt;
}

// Of plain tensors with one dimension.
Sizes sizes_of_rows(const std::vector<Value>& optimizers) {
  Sizes sizes;
  for (const Value& optimizer : optimizers) {
    const auto state = item_in(optimizer, "state");
    for (const auto& [number, of_param] : items_of(state ? as_mapping(*state) : std::nullopt)) {
      if (!number.is(Kind::Int)) return {};
      for (const auto& [name, value] : items_of(as_mapping(of_param))) {
        if (as_wrapped(value)) return {};  // a DTensor: FSDP2's
        const auto view = as_tensor(value);
        if (!view || view->shape.size() != 1) continue;
        ++sizes[key_text(name)][number.as_int()][view->shape[0]];
      }
    }
  }
  return sizes;
}

// What tells the content of a tensor's parts, as far as checksums do.
std::string content_of(const TensorEntry& tensor) {
  std::string content = std::string(name(tensor.dtype)) + shape_text(tensor.shape);
  for (const Chunk& chunk : tensor.chunks) {
    content += " " + std::to_string(chunk.region.crc32.value_or(0));
  }
  return content;
}

std::vector<UnitParam> params_of(const std::vector<TensorEntry>& model) {
  std::vector<UnitParam> params;
  std::set<std::string> contents;
  for (const TensorEntry& tensor : model) {
    const size_t name = tensor.key.find('/', 1);
    params.push_back({step_text(std::string_view(tensor.key).substr(name + 1)),
                      element_count(tensor.shape), !contents.insert(content_of(tensor)).second});
  }
  return params;
}

}  // namespace

size_t count_params(const Value& optimizer) {
  const auto groups = item_in(optimizer, "param_groups");
  if (!groups || !groups->is(Kind::List)) return 0;
  int64_t count = 0;
  for (size_t i = 0; i < groups->size(); ++i) {
    const auto params = item_in((*groups)[i], "params");
    if (!params || !params->is(Kind::List)) return 0;
    for (size_t j = 0; j < params->size(); ++j) {
      if (!(*params)[j].is(Kind::Int) || (*params)[j].as_int() != count++) return 0;
    }
  }
  return static_cast<size_t>(count);
}

void RankParts::add(uint64_t rank, const RankTensor& tensor) {
  are_known = are_known && !tensor.mesh.empty() && tensor.coordinates;
  for (size_t i = 0; i < tensor.placements.size(); ++i) {
    are_known = are_known && tensor.placements[i].is_sharded == (i + 1 == tensor.placements.size());
  }
  if (!are_known) return;
  const uint64_t part = of_rank.emplace(rank, tensor.coordinates->back()).first->second;
  are_known = part == tensor.coordinates->back() && (parts == 0 || parts == tensor.mesh.back());
  parts = tensor.mesh.back();
}

const FlatStates::Unit* FlatStates::at(std::string_view pointer) const {
  const size_t last = pointer.rfind('/');
  const size_t middle =
      last == 0 || last == pointer.npos ? pointer.npos : pointer.rfind('/', last - 1);
  if (middle == pointer.npos || !pointer.substr(0, middle).ends_with("/state")) return nullptr;
  if (std::ranges::find(names, step_text(pointer.substr(last + 1))) == names.end()) return nullptr;
  const auto number = number_in<size_t>(pointer.substr(middle + 1, last - middle - 1));
  return number && *number < units.size() && units[*number].part_elements ? &units[*number]
                                                                          : nullptr;
}

std::string FlatStates::words() const {
  if (!names.empty() && problem.empty()) return "1, their flat parameters put together";
  return "1, each with its elements of a flat optimizer" + (problem.empty() ? "" : ": " + problem);
}

FlatStates find_flat_states(const std::vector<Value>& optimizers,
                            const std::vector<TensorEntry>& model, const RankParts& parts) {
  const size_t count = optimizers.empty() ? 0 : count_params(optimizers[0]);
  const Sizes sizes = sizes_of_rows(optimizers);
  if (count == 0 || !parts.are_known || parts.parts < 2) return {};
  std::vector<std::optional<uint64_t>> part_elements(count);
  for (const auto& [name, of_params] : sizes) {
    for (const auto& [number, counts] : of_params) {
      if (number < 0 || static_cast<size_t>(number) >= count) return {};
      auto& known = part_elements[static_cast<size_t>(number)];
      known = std::max(known.value_or(0), most_frequent(counts));
    }
  }
  FlatStates states;
  for (const auto& [name, of_params] : sizes) {
    const bool is_flat = std::ranges::all_of(of_params, [&](const auto& of_param) {
      return most_frequent(of_param.second) == part_elements[static_cast<size_t>(of_param.first)];
    });
    const bool is_long = std::ranges::any_of(
        of_params, [](const auto& of_param) { return most_frequent(of_param.second) > 1; });
    if (is_flat && is_long) states.names.push_back(name);
  }
  if (states.names.empty()) return {};
  const FlatUnits found = find_flat_units(params_of(model), part_elements, parts.parts);
  states.problem = found.problem;
  for (size_t unit = 0; unit < count; ++unit) {
    states.units.push_back(
        {part_elements[unit], found.elements.empty() ? 0 : found.elements[unit]});
  }
  return states;
}

std::string problem_of_parts(const FlatStates& states, const std::vector<TensorEntry>& model,
                             uint64_t parts) {
  std::vector<std::optional<uint64_t>> part_elements;
  for (const FlatStates::Unit& unit : states.units) {
    const uint64_t each = unit.elements / parts + (unit.elements % parts != 0);
    part_elements.push_back(unit.part_elements ? std::optional(each) : std::nullopt);
  }
  return parts < 2 ? "" : find_flat_units(params_of(model), part_elements, parts).problem;
}

}  // namespace ckpt
