#include "format/joined/flat_states.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <ckpt/param_order.h>
#include <ckpt/printed.h>

#include "base/text.h"
#include "codec/python_values.h"
#include "format/joined/flat_units.h"
#include "format/values/nesting.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

using RowLengths = std::map<uint64_t, uint64_t>;                        // of rows, by rank
using StateRows = std::map<std::string, std::map<size_t, RowLengths>>;  // by state and parameter

uint64_t most_frequent(const RowLengths& lengths) {
  std::map<uint64_t, size_t> counts;
  for (const auto& [rank, length] : lengths) ++counts[length];
  return std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; })->first;
}

std::optional<Value> item_in(const Value& value, std::string_view name) {
  const auto mapping = as_mapping(value);
  return mapping ? mapping->find(name) : std::nullopt;
}

// Plain tensors with one dimension.
StateRows rows_of(const RankOptimizers& optimizers, size_t params) {
  StateRows rows;
  for (const auto& [rank, optimizer] : optimizers) {
    const auto state = item_in(optimizer, "state");
    for (const auto& [number, of_param] : items_of(state ? as_mapping(*state) : std::nullopt)) {
      if (!number.is(Kind::Int) || number.as_int() < 0) return {};
      const auto param = static_cast<size_t>(number.as_int());
      if (param >= params) return {};
      for (const auto& [name, value] : items_of(as_mapping(of_param))) {
        if (as_wrapped(value)) return {};  // a DTensor: FSDP2's
        const auto view = as_tensor(value);
        if (view && view->shape.size() == 1) rows[key_text(name)][param][rank] = view->shape[0];
      }
    }
  }
  return rows;
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

// --- with use_orig_params ---

// On each part; empty: on none.
std::vector<uint64_t> counts_of(const RowLengths& lengths, const RankShards& shards) {
  std::vector<uint64_t> counts;
  for (const auto& [rank, length] : lengths) {
    const auto part = shards.of_rank.find(rank);
    if (part == shards.of_rank.end()) continue;
    counts.resize(shards.parts);
    counts[part->second] = std::max(counts[part->second], length);
  }
  return counts;
}

uint64_t sum_of(const std::vector<uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

// Without what FSDP and activation checkpointing put before modules.
std::string name_of_param(std::string name) {
  for (const std::string_view wrapper : {"_fsdp_wrapped_module.", "_checkpoint_wrapped_module."}) {
    for (size_t at = 0; (at = name.find(wrapper)) != name.npos;) name.erase(at, wrapper.size());
  }
  return name;
}

// Which of the model's parameters each number is.
class NumberNaming {
 public:
  NumberNaming(const Value& optimizer, const std::vector<UnitParam>& model)
      : model_(model), groups_(*item_in(optimizer, "param_groups")) {}

  // `sums`: of elements, by number. Empty: not known.
  std::vector<size_t> run(const std::vector<std::optional<uint64_t>>& sums) const {
    if (std::vector<size_t> named = by_name(); !named.empty()) return named;
    std::vector<size_t> candidates(model_.size());
    std::iota(candidates.begin(), candidates.end(), 0);
    if (candidates.size() > sums.size()) {
      const auto is_shared = [&](size_t param) { return model_[param].may_be_shared; };
      const auto shared = std::ranges::count_if(candidates, is_shared);
      if (candidates.size() - static_cast<size_t>(shared) == sums.size()) {
        std::erase_if(candidates, is_shared);
      }
    }
    if (candidates.size() < sums.size()) return {};
    if (candidates.size() == sums.size() && groups_.size() == 1) return candidates;
    return by_order(candidates, sums);
  }

 private:
  std::vector<size_t> by_name() const {
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < model_.size(); ++i) places.emplace(model_[i].name, i);
    std::vector<size_t> named;
    for (size_t i = 0; i < groups_.size(); ++i) {
      const auto names = item_in(groups_[i], "param_names");
      if (!names || !names->is(Kind::List) ||
          names->size() != item_in(groups_[i], "params")->size()) {
        return {};
      }
      for (size_t j = 0; j < names->size(); ++j) {
        const auto place = places.find(name_of_param(key_text((*names)[j])));
        if (place == places.end()) return {};
        named.push_back(place->second);
        places.erase(place);  // once
      }
    }
    return named;
  }

  std::vector<size_t> by_order(const std::vector<size_t>& candidates,
                               const std::vector<std::optional<uint64_t>>& sums) const {
    std::vector<std::vector<std::optional<Extents>>> groups(groups_.size() + 1);
    size_t number = 0;
    for (size_t i = 0; i < groups_.size(); ++i) {
      for (const size_t end = number + item_in(groups_[i], "params")->size(); number < end;) {
        const auto& sum = sums[number++];
        groups[i].push_back(sum ? std::optional(Extents{*sum}) : std::nullopt);
      }
    }
    groups.back().resize(candidates.size() - sums.size());  // the optimizer does not have them
    std::vector<Extents> sizes;
    for (const size_t param : candidates) sizes.push_back({model_[param].elements});
    const auto places = place_in_order(sizes, groups);
    std::vector<size_t> numbers;
    for (size_t i = 0; places && i < groups_.size(); ++i) {
      for (const size_t place : (*places)[i]) numbers.push_back(candidates[place]);
    }
    return numbers;
  }

  const std::vector<UnitParam>& model_;
  Value groups_;
};

// Those of ranks that have parts of the model's parameters.
FlatStates find_parts_of_params(const Value& optimizer, const StateRows& rows,
                                const std::vector<TensorEntry>& model, const RankShards& shards) {
  FlatStates states;
  FlatStates::Params& params = states.params.emplace();
  params.model = params_of(model);
  const size_t count = count_params(optimizer);
  std::vector<std::vector<uint64_t>> counts(count);
  for (const auto& [name, of_params] : rows) {
    for (const auto& [number, lengths] : of_params) {
      std::vector<uint64_t> one = counts_of(lengths, shards);
      if (sum_of(one) > sum_of(counts[number])) counts[number] = std::move(one);
    }
  }
  std::vector<std::optional<uint64_t>> sums;
  for (const auto& of : counts)
    sums.push_back(of.empty() ? std::nullopt : std::optional(sum_of(of)));
  params.of_numbers = NumberNaming(optimizer, params.model).run(sums);
  states.units.resize(count);
  if (params.of_numbers.empty()) {
    states.problem = "their sizes do not tell which parameters they are of";
    return states;
  }
  const auto elements = [&](size_t number) {
    return params.model[params.of_numbers[number]].elements;
  };
  params.counts.resize(model.size());
  for (size_t number = 0; number < count; ++number) {
    if (sums[number] == elements(number)) params.counts[params.of_numbers[number]] = counts[number];
  }
  for (size_t param = 0; param < model.size(); ++param) {
    const bool is_named = std::ranges::find(params.of_numbers, param) != params.of_numbers.end();
    if (!is_named && params.model[param].may_be_shared) params.may_lack.push_back(param);
  }
  for (const auto& [name, of_params] : rows) {
    const auto fitting = std::ranges::count_if(of_params, [&](const auto& of_param) {
      return sum_of(counts_of(of_param.second, shards)) == elements(of_param.first);
    });
    if (2 * static_cast<size_t>(fitting) > of_params.size()) states.names.push_back(name);
  }
  const FlatPlaces places =
      find_flat_places(params.model, params.counts, params.may_lack, shards.parts);
  if (places.is_contradiction || states.names.empty()) {
    states.names.clear();
    states.problem = places.problem.empty() ? "no parameter has their sizes" : places.problem;
    return states;
  }
  for (size_t number = 0; number < count; ++number) {
    if (counts[number].empty()) continue;
    const size_t param = params.of_numbers[number];
    FlatStates::Unit& unit = states.units[number] = {counts[number], model[param].shape};
    const auto& place = places.of_params.empty() ? std::nullopt : places.of_params[param];
    for (uint64_t part = 0; place && part < shards.parts; ++part) {
      unit.lengths[part] = place->count(part);
    }
  }
  return states;
}

// --- without ---

bool has_flat_name(const std::map<size_t, RowLengths>& of_params,
                   const std::vector<std::optional<uint64_t>>& part_elements) {
  const auto is_flat = [&](const auto& of_param) {
    return most_frequent(of_param.second) == part_elements[of_param.first];
  };
  const auto is_long = [](const auto& of_param) { return most_frequent(of_param.second) > 1; };
  return std::ranges::all_of(of_params, is_flat) && std::ranges::any_of(of_params, is_long);
}

FlatStates find_rows_of_units(size_t count, const StateRows& rows,
                              const std::vector<TensorEntry>& model, uint64_t parts) {
  std::vector<std::optional<uint64_t>> part_elements(count);
  for (const auto& [name, of_params] : rows) {
    for (const auto& [number, lengths] : of_params) {
      part_elements[number] = std::max(part_elements[number].value_or(0), most_frequent(lengths));
    }
  }
  FlatStates states;
  for (const auto& [name, of_params] : rows) {
    if (has_flat_name(of_params, part_elements)) states.names.push_back(name);
  }
  if (states.names.empty()) return {};
  const FlatUnits found = find_flat_units(params_of(model), part_elements, parts);
  states.problem = found.problem;
  for (size_t unit = 0; unit < count; ++unit) {
    FlatStates::Unit& made = states.units.emplace_back();
    if (part_elements[unit]) made.lengths.assign(parts, *part_elements[unit]);
    const bool is_known = !found.elements.empty() && found.elements[unit] != 0;
    if (is_known) made.shape = Extents{found.elements[unit]};
  }
  return states;
}

// StateRows of flat parameters are alike on all ranks.
bool are_of_params(const StateRows& rows, size_t ranks) {
  size_t alike = 0, all = 0;
  for (const auto& [name, of_params] : rows) {
    for (const auto& [number, lengths] : of_params) {
      const auto is_first = [&](const auto& of_rank) {
        return of_rank.second == lengths.begin()->second;
      };
      alike += lengths.size() == ranks && std::ranges::all_of(lengths, is_first) ? 1 : 0;
      ++all;
    }
  }
  return 2 * alike < all;
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

void RankShards::add(uint64_t rank, const RankTensor& tensor) {
  are_known = are_known && !tensor.mesh.empty() && tensor.coordinates;
  for (size_t i = 0; i < tensor.placements.size(); ++i) {
    are_known = are_known && tensor.placements[i].is_sharded == (i + 1 == tensor.placements.size());
  }
  if (!are_known) return;
  const uint64_t part = of_rank.emplace(rank, tensor.coordinates->back()).first->second;
  are_known = part == tensor.coordinates->back() && (parts == 0 || parts == tensor.mesh.back());
  parts = tensor.mesh.back();
}

uint64_t FlatStates::Unit::first(uint64_t part) const {
  const auto end = lengths.begin() + static_cast<std::ptrdiff_t>(part);
  return std::min(element_count(*shape), std::accumulate(lengths.begin(), end, uint64_t{0}));
}

const FlatStates::Unit* FlatStates::at(std::string_view pointer) const {
  const size_t last = pointer.rfind('/');
  const size_t middle =
      last == 0 || last == pointer.npos ? pointer.npos : pointer.rfind('/', last - 1);
  if (middle == pointer.npos || !pointer.substr(0, middle).ends_with("/state")) return nullptr;
  if (std::ranges::find(names, step_text(pointer.substr(last + 1))) == names.end()) return nullptr;
  const auto number = number_in<size_t>(pointer.substr(middle + 1, last - middle - 1));
  const bool is_one = number && *number < units.size() && !units[*number].lengths.empty();
  return is_one ? &units[*number] : nullptr;
}

std::string FlatStates::words() const {
  if (names.empty() || !problem.empty()) {
    return "1, each with its elements of a flat optimizer" +
           (problem.empty() ? "" : ": " + problem);
  }
  return params ? "1, its parts of parameters put together"
                : "1, their flat parameters put together";
}

FlatPlaces FlatStates::places_in(uint64_t parts) const {
  FlatPlaces found = find_flat_places(params->model, params->counts, params->may_lack, parts);
  std::vector<std::optional<FlatPlace>> by_number(units.size());
  for (size_t number = 0; found.problem.empty() && number < units.size(); ++number) {
    by_number[number] = found.of_params[params->of_numbers[number]];
    if (!units[number].lengths.empty() && !by_number[number]) {
      found.problem = "not all elements of a state are there";
    }
  }
  found.of_params = std::move(by_number);
  return found;
}

FlatStates find_flat_states(const RankOptimizers& optimizers, const std::vector<TensorEntry>& model,
                            const RankShards& shards) {
  const size_t count = optimizers.empty() ? 0 : count_params(optimizers[0].second);
  const bool has_parts = shards.parts >= 2 && shards.parts <= optimizers.size();
  if (count == 0 || !shards.are_known || !has_parts) return {};
  const StateRows rows = rows_of(optimizers, count);
  if (rows.empty()) return {};
  FlatStates of_params = find_parts_of_params(optimizers[0].second, rows, model, shards);
  if (are_of_params(rows, optimizers.size())) return of_params;
  FlatStates of_units = find_rows_of_units(count, rows, model, shards.parts);
  if (!of_params.problem.empty()) return of_units;
  if (of_units.names.empty() || !of_units.problem.empty()) return of_params;
  of_units.problem = "they may be of flat parameters, or of parts of parameters";
  for (FlatStates::Unit& unit : of_units.units) unit.shape.reset();
  return of_units;
}

std::string problem_of_parts(const FlatStates& states, const std::vector<TensorEntry>& model,
                             uint64_t parts) {
  std::vector<std::optional<uint64_t>> part_elements;
  for (const FlatStates::Unit& unit : states.units) {
    const uint64_t elements = unit.shape ? element_count(*unit.shape) : 0;
    const uint64_t each = elements / parts + (elements % parts != 0);
    part_elements.push_back(!unit.lengths.empty() ? std::optional(each) : std::nullopt);
  }
  return parts < 2 ? "" : find_flat_units(params_of(model), part_elements, parts).problem;
}

}  // namespace ckpt
