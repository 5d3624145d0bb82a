// Elements of each state, which a conversion must not lose.
#include <training/conservation.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <ckpt/error.h>
#include <optim/rule_table.h>

#include "grid/build_state.h"
#include "grid/placement.h"
#include "model/stage_names.h"
#include "state/remainders.h"

namespace optim {
namespace {

// Of a tensor with other rows.
uint64_t elements_with(const ckpt::TensorEntry& tensor, uint64_t rows) {
  const uint64_t elements = ckpt::element_count(tensor.shape);
  const bool has_rows = !tensor.shape.empty() && tensor.shape[0] != 0;
  return has_rows ? elements / tensor.shape[0] * rows : elements;
}

bool has_own_shape(std::string_view state) {
  const auto known = std::ranges::find(all_states(), state, &StateSpec::name);
  return known != all_states().end() && known->own_shape;
}

class Counter {
 public:
  explicit Counter(uint64_t vocabulary_rows) : rows_(vocabulary_rows) {}

  void add(const TrainingState& state, const TrainedParam& param) {
    is_of_experts_ = expert_in(param.info.name).has_value();
    weight_ = rows_ != 0 && is_vocabulary(state, param.info.name) ? param.weight.get() : nullptr;
    add("weight", *param.weight);
    if (param.master) add(kMasterState, *param.master);
    for (const StateTensor& each : param.states) add(each.name, *each.value);
  }

  std::vector<StateCount> finish() {
    std::stable_partition(counts_.begin(), counts_.end(),
                          [](const StateCount& count) { return !count.is_of_experts; });
    return std::move(counts_);
  }

 private:
  void add(std::string_view state, const ckpt::TensorEntry& tensor) {
    auto found = std::ranges::find_if(counts_, [&](const StateCount& count) {
      return count.state == state && count.is_of_experts == is_of_experts_;
    });
    if (found == counts_.end()) {
      found = counts_.insert(found, {std::string(state), is_of_experts_});
    }
    const bool gets_rows = weight_ != nullptr && tensor.shape == weight_->shape;
    ++found->tensor_count;
    found->element_count +=
        gets_rows ? elements_with(tensor, rows_) : ckpt::element_count(tensor.shape);
  }

  uint64_t rows_;
  bool is_of_experts_ = false;
  const ckpt::TensorEntry* weight_ = nullptr;  // of a vocabulary that gets other rows
  std::vector<StateCount> counts_;
};

}  // namespace

std::vector<std::string> uneven_counts(const TrainingState& state) {
  using Counts = std::vector<std::pair<std::string, uint64_t>>;  // of weights first
  std::map<uint32_t, Counts> optimizers;
  for (const TrainedParam& param : state.params) {
    if (state.chain.empty() || !param.info.requires_grad) continue;
    Counts& counts = optimizers[param.optimizer];
    const auto add = [&](std::string_view name, const ckpt::TensorEntry& tensor) {
      auto found = std::ranges::find(counts, name, &Counts::value_type::first);
      if (found == counts.end()) found = counts.insert(found, {std::string(name), 0});
      found->second += ckpt::element_count(tensor.shape);
    };
    add("weight", *param.weight);
    if (const TensorRef& master = filed_as_master(param)) add(kMasterState, *master);
    for (const StateTensor& each : param.states) {
      if (each.name != kRemainderState && !has_own_shape(each.name)) add(each.name, *each.value);
    }
  }
  std::vector<std::string> uneven;
  for (const auto& [optimizer, counts] : optimizers) {
    const auto differs = [&](const auto& count) { return count.second != counts[0].second; };
    if (std::ranges::none_of(counts, differs)) continue;
    std::string text = "of optimizer " + std::to_string(optimizer);
    const char* separator = " ";
    for (const auto& [name, count] : counts) {
      text += std::exchange(separator, ", ") + ckpt::escaped(name) + " " + std::to_string(count);
    }
    uneven.push_back(std::move(text));
  }
  return uneven;
}

std::vector<StateCount> count_states(const TrainingState& state, uint64_t vocabulary_rows) {
  Counter counter(vocabulary_rows);
  for (const TrainedParam& param : state.params) counter.add(state, param);
  return counter.finish();
}

std::vector<StateCount> count_states(const TrainingState& state) { return count_states(state, 0); }

}  // namespace optim
