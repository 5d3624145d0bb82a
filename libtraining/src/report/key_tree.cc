#include <training/key_tree.h>

#include <algorithm>
#include <map>
#include <utility>

#include <training/megatron_folders.h>

#include "grid/build_state.h"
#include "model/tensor_names.h"
#include "report/logical_names.h"
#include "state/remainders.h"

namespace optim {
namespace {

// "/model/a~1b" -> model, a/b; "decoder.layers.weight" -> decoder, layers, weight; the file first.
std::vector<std::string> steps_of(const CatalogRow& row) {
  std::vector<std::string> steps;
  if (!row.file().empty()) steps.push_back(row.file());
  const std::string& key = row.key();
  const bool is_pointer = key.starts_with('/');
  const char separator = is_pointer ? '/' : '.';
  // "rng_state/shard_0.0_1.1": a part of a sharded object is one step.
  const size_t last = is_pointer ? key.npos : key.find("/shard_");
  size_t start = is_pointer ? 1 : 0;
  while (steps.size() + 1 < kKeyDepthMax) {
    const size_t end = key.find(separator, start);
    if (end >= last) break;
    steps.push_back(key.substr(start, end - start));
    start = end + 1;
  }
  steps.push_back(key.empty() ? "(root)" : key.substr(std::min(start, key.size())));
  if (is_pointer) std::ranges::transform(steps, steps.begin(), unescaped_step);
  return steps;
}

// Steps that are numbers, as those of layers, follow each other: a file may have them as 0, 1, 10,
// 11, 2. The others keep their places. kKeyDepthMax bounds the recursion.
void sort_numbers(KeyBranch& branch) {
  std::vector<size_t> places;
  for (size_t i = 0; i < branch.children.size(); ++i) {
    if (is_number(branch.children[i]->name)) places.push_back(i);
    sort_numbers(*branch.children[i]);
  }
  std::vector<std::unique_ptr<KeyBranch>> numbers;
  for (const size_t place : places) numbers.push_back(std::move(branch.children[place]));
  std::ranges::stable_sort(
      numbers, [](const auto& a, const auto& b) { return natural_less(a->name, b->name); });
  for (size_t i = 0; i < places.size(); ++i) branch.children[places[i]] = std::move(numbers[i]);
}

void count(const CatalogRow& row, KeyBranch& branch) {
  ++(row.tensor != nullptr ? branch.tensor_count : branch.object_count);
  branch.count_bytes += row.count_bytes.value_or(0);
}

ByteUse use_of_state(const std::string& state) {
  constexpr std::string_view kMasters[] = {kMasterState, kDistributedMaster, kRemainderState};
  if (std::ranges::find(kMasters, state) != std::end(kMasters)) return ByteUse::Masters;
  const bool is_other = state.empty() || state == "step" || state == "common_step";
  return is_other ? ByteUse::OtherState : ByteUse::Moments;
}

ByteUse use_of(const CatalogRow& row, bool is_megatron) {
  if (row.tensor == nullptr) return ByteUse::Objects;
  switch (role_of(*row.tensor)) {
    case KeyKind::Model: return ByteUse::Weights;
    case KeyKind::Average: return ByteUse::Averages;
    case KeyKind::OptimizerState: return use_of_state(state_name(*row.tensor, is_megatron).state);
    case KeyKind::RngState: return ByteUse::RandomStates;
    case KeyKind::CommonState:
    case KeyKind::Progress: break;
  }
  return ByteUse::OtherTensors;
}

}  // namespace

std::string_view name(ByteUse use) {
  static constexpr std::string_view kNames[] = {"weights",       "averages",    "masters",
                                                "moments",       "other_state", "random_states",
                                                "other_tensors", "objects"};
  return kNames[static_cast<size_t>(use)];
}

std::vector<UsedBytes> sum_uses(std::span<const CatalogRow> rows,
                                const OpenedTraining& checkpoint) {
  std::map<ByteUse, UsedBytes> sums;
  const bool of_megatron = is_megatron(checkpoint);
  for (const CatalogRow& row : rows) {
    const ByteUse use = use_of(row, of_megatron);
    UsedBytes& sum = sums.try_emplace(use, UsedBytes{use}).first->second;
    ++sum.count;
    sum.count_bytes += row.count_bytes.value_or(0);
  }
  std::vector<UsedBytes> uses;
  for (const auto& [use, sum] : sums) uses.push_back(sum);
  std::ranges::stable_sort(uses, std::ranges::greater(), &UsedBytes::count_bytes);
  return uses;
}

void sort_by_size(KeyBranch& branch) {
  std::ranges::stable_sort(branch.children, [](const auto& a, const auto& b) {
    return a->count_bytes > b->count_bytes;
  });
  for (const auto& child : branch.children) sort_by_size(*child);
}

KeyBranch make_key_tree(std::span<const CatalogRow> rows) {
  KeyBranch root;
  std::map<std::pair<const KeyBranch*, std::string>, KeyBranch*> by_step;
  for (const CatalogRow& row : rows) {
    KeyBranch* branch = &root;
    count(row, *branch);
    for (const std::string& step : steps_of(row)) {
      KeyBranch*& child = by_step[{branch, step}];
      if (child == nullptr) {
        child = branch->children.emplace_back(std::make_unique<KeyBranch>()).get();
        child->name = step;
      }
      branch = child;
      count(row, *branch);
    }
    branch->row = &row;
  }
  sort_numbers(root);
  return root;
}

}  // namespace optim
