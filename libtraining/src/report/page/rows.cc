// The rows of a report, and what has changed in them between two checkpoints.
#include "report/page/rows.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <training/megatron_folders.h>

#include "report/logical_names.h"

namespace optim {
namespace {

ReportedTensor row_of(LogicalTensor tensor) {
  return {.tensor = std::move(tensor), .figures = {}, .marks = {}, .optimizer = {}, .group = {}};
}

void add_named(const TrainedParam& param, ReportRows& rows) {
  for (LogicalTensor& tensor : tensors_of_param(param)) {
    rows.entries.push_back(tensor.value);
    ReportedTensor& row = rows.tensors.emplace_back(row_of(std::move(tensor)));
    if (!param.master && param.states.empty()) continue;
    row.optimizer = param.optimizer;
    row.group = param.group;
  }
}

// As stored: a weight's name is its key without the container; of state without a parameter's name
// the whole key.
ReportedTensor stored_row(const ckpt::TensorEntry& tensor, bool is_megatron) {
  ReportedTensor row = row_of(stored_tensor(tensor, is_megatron));
  const KeyKind role = row.tensor.role;
  if (role != KeyKind::OptimizerState && role != KeyKind::Model) row.tensor.name.clear();
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

// Rows by the file and key by which they may be named: as it is stored, or, where state dicts of
// two formats are compared by their places, as its weight is called.
std::map<std::pair<std::string, std::string>, size_t> places_of(const ReportRows& rows) {
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (size_t i = 0; i < rows.entries.size(); ++i) {
    const ckpt::TensorEntry& entry = *rows.entries[i];
    places.try_emplace({entry.file, entry.key}, i);
  }
  for (size_t i = 0; i < rows.tensors.size(); ++i) {
    const LogicalTensor& tensor = rows.tensors[i].tensor;
    if (tensor.role == KeyKind::Model) places.try_emplace({"", tensor.name}, i);
  }
  return places;
}

constexpr uint64_t kRunElements = 4096;  // of a run at most, where more runs than one fit

// The rows, within one index of all dimensions before, that hold so many elements or fewer.
struct RunShape {
  size_t dim = 0;        // in which a run has several indices
  uint64_t inner = 1;    // elements of one index of it
  uint64_t indices = 1;  // of a run
};

RunShape run_shape(const ckpt::Extents& shape, uint64_t elements_max) {
  RunShape run{.dim = shape.size() - 1};
  while (run.dim > 0 && run.inner * shape[run.dim] < elements_max) {
    run.inner *= shape[run.dim];
    --run.dim;
  }
  run.indices = std::clamp<uint64_t>(elements_max / run.inner, 1, shape[run.dim]);
  return run;
}

// The run that starts at or before the element.
ckpt::Box run_at(const ckpt::Extents& shape, const RunShape& run, uint64_t element) {
  ckpt::Box box = ckpt::whole(shape);
  uint64_t rest = element / run.inner;
  const uint64_t first = rest % shape[run.dim] / run.indices * run.indices;
  box.offsets[run.dim] = first;
  box.sizes[run.dim] = std::min(run.indices, shape[run.dim] - first);
  rest /= shape[run.dim];
  for (size_t dim = run.dim; dim-- > 0;) {
    box.offsets[dim] = rest % shape[dim];
    box.sizes[dim] = 1;
    rest /= shape[dim];
  }
  return box;
}

}  // namespace

ReportRows list_rows(const OpenedTraining& checkpoint, const TrainingState* state) {
  ReportRows rows;
  if (state != nullptr) {
    for (const TrainedParam& param : state->params) add_named(param, rows);
    return rows;
  }
  const bool megatron = is_megatron(checkpoint);
  for (const ckpt::TensorEntry& tensor : checkpoint.catalog().tensors) {
    rows.tensors.push_back(stored_row(tensor, megatron));
    // The catalog's own, which lives as long as the checkpoint.
    rows.entries.emplace_back(std::shared_ptr<const void>(), &tensor);
  }
  std::vector<LogicalTensor*> with_param;
  for (ReportedTensor& row : rows.tensors) {
    const bool is_state = row.tensor.role == KeyKind::OptimizerState;
    if (!is_state || row.has_param_name) with_param.push_back(&row.tensor);
  }
  match_state_to_weights(with_param);
  sort_by_name(rows);
  return rows;
}

Comparison compare_with(const OpenedTraining& a, const ReportPage& page, const OpenedTraining& b,
                        const ckpt::DiffOptions& options) {
  Comparison comparison{names_in_common(a, b), {}, {}, {}};
  ckpt::DiffOptions changes = options;
  changes.changes = true;
  comparison.differences = diff({comparison.named.a, a}, {comparison.named.b, b}, changes);
  comparison.modules =
      summarize(Compared{comparison.differences, comparison.named.a, comparison.named.b});
  const auto places = places_of(list_rows(a, page.summary.groups.state.get()));
  for (const ckpt::TensorDifference& tensor : comparison.differences.tensors) {
    const auto found = tensor.a ? places.find({tensor.file, tensor.key}) : places.end();
    comparison.rows.push_back(found == places.end() ? std::nullopt : std::optional(found->second));
  }
  return comparison;
}

std::vector<ckpt::Box> spread_boxes(const ckpt::Extents& shape, uint64_t element_count_max) {
  const uint64_t count = ckpt::element_count(shape);
  if (count <= element_count_max || shape.empty()) return {ckpt::whole(shape)};
  const RunShape run = run_shape(shape, std::min(element_count_max, kRunElements));
  const uint64_t run_elements = run.indices * run.inner;
  const uint64_t runs = std::max<uint64_t>(1, element_count_max / run_elements);
  std::vector<ckpt::Box> boxes;
  for (uint64_t i = 0; i < runs; ++i) {
    const auto at = static_cast<uint64_t>(static_cast<unsigned __int128>(count) * i / runs);
    ckpt::Box box = run_at(shape, run, at);
    if (boxes.empty() || !(box == boxes.back())) boxes.push_back(std::move(box));
  }
  return boxes;
}

std::vector<uint64_t> shared_out(std::span<const TensorRef> tensors, uint64_t bytes_max) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return ckpt::count_bytes(*tensors[i]); });
  std::vector<uint64_t> shares(tensors.size());
  uint64_t left_bytes = bytes_max, left = tensors.size();
  for (const size_t i : order) {
    shares[i] = std::min(ckpt::count_bytes(*tensors[i]), left_bytes / left);
    left_bytes -= shares[i];
    --left;
  }
  return shares;
}

}  // namespace optim
