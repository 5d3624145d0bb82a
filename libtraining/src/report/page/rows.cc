#include "report/page/rows.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <ckpt/error.h>
#include <training/megatron_folders.h>

#include "model/state_names.h"
#include "model/tensor_names.h"
#include "report/natural_order.h"

namespace optim {
namespace {

LogicalTensor logical(const ckpt::TensorEntry& tensor, KeyKind role) {
  return {role, {}, {}, tensor.dtype, tensor.shape, ckpt::count_bytes(tensor)};
}

class NamedRows {
 public:
  explicit NamedRows(ReportRows& rows) : rows_(rows) {}

  void add(const TrainedParam& param) {
    put(param, {}, param.weight);
    if (param.master) put(param, "fp32_param", param.master);
    for (const StateTensor& state : param.states) put(param, state.name, state.value);
  }

 private:
  void put(const TrainedParam& param, const std::string& state, const TensorRef& entry) {
    const KeyKind role = state.empty() ? KeyKind::Model : KeyKind::OptimizerState;
    ReportedTensor row{
        .tensor = logical(*entry, role), .figures = {}, .marks = {}, .optimizer = {}, .group = {}};
    row.tensor.name = param.info.name;
    row.tensor.state = state;
    if (param.master || !param.states.empty()) {
      row.optimizer = param.optimizer;
      row.group = param.group;
    }
    rows_.tensors.push_back(std::move(row));
    rows_.entries.push_back(entry);
  }
  ReportRows& rows_;
};

// As stored: a weight's name is its key without the container; of state without a parameter's name
// the whole key.
ReportedTensor stored_row(const ckpt::TensorEntry& tensor, bool is_megatron) {
  ReportedTensor row{.tensor = logical(tensor, role_of(tensor)),
                     .figures = {},
                     .marks = {},
                     .optimizer = {},
                     .group = {}};
  if (row.tensor.role == KeyKind::OptimizerState) {
    StateName state = state_name(tensor, is_megatron);
    row.tensor.name = std::move(state.param);
    row.tensor.state = std::move(state.state);
  } else if (row.tensor.role == KeyKind::Model) {
    row.tensor.name = weight_name(tensor);
  }
  row.has_param_name = !row.tensor.name.empty() && tensor.file.empty();
  if (row.tensor.name.empty()) row.tensor.name = tensor.key;
  if (!tensor.file.empty()) row.tensor.name = tensor.file + ":" + row.tensor.name;
  return row;
}

// A parameter's rows together, in natural order; its weight before its states.
void sort_by_name(ReportRows& rows) {
  std::vector<size_t> order(rows.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const LogicalTensor &x = rows.tensors[a].tensor, &y = rows.tensors[b].tensor;
    if (x.name != y.name) return natural_less(x.name, y.name);
    return x.role < y.role;
  });
  ReportRows sorted;
  for (const size_t i : order) {
    sorted.tensors.push_back(std::move(rows.tensors[i]));
    sorted.entries.push_back(std::move(rows.entries[i]));
  }
  rows = std::move(sorted);
}

// The optimizer's names are without the container that the weights' names start with.
void match_state_to_weights(ReportRows& rows) {
  std::set<std::string> weights, containers;
  for (const ReportedTensor& row : rows.tensors) {
    if (row.tensor.role != KeyKind::Model) continue;
    weights.insert(row.tensor.name);
    const size_t dot = row.tensor.name.find('.');
    if (dot != row.tensor.name.npos) containers.insert(row.tensor.name.substr(0, dot + 1));
  }
  if (containers.size() > 16) return;
  for (ReportedTensor& row : rows.tensors) {
    const bool is_open = row.tensor.role == KeyKind::OptimizerState && row.has_param_name &&
                         !weights.contains(row.tensor.name);
    if (!is_open) continue;
    for (const std::string& container : containers) {
      if (!weights.contains(container + row.tensor.name)) continue;
      row.tensor.name.insert(0, container);
      break;
    }
  }
}

}  // namespace

ReportRows list_rows(const OpenedTraining& checkpoint, const TrainingState* view) {
  ReportRows rows;
  if (view != nullptr) {
    NamedRows named(rows);
    for (const TrainedParam& param : view->params) named.add(param);
    return rows;
  }
  const bool megatron = is_megatron(checkpoint);
  for (const ckpt::TensorEntry& tensor : checkpoint.catalog().tensors) {
    rows.tensors.push_back(stored_row(tensor, megatron));
    // The catalog's own, which lives as long as the checkpoint.
    rows.entries.emplace_back(std::shared_ptr<const void>(), &tensor);
  }
  match_state_to_weights(rows);
  sort_by_name(rows);
  return rows;
}

}  // namespace optim
