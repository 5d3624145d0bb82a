#include "outcome.h"

#include <ATen/ops/sub.h>

#include <optim/checkpoint_bridge.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <algorithm>
#include <cmath>
#include <limits>

#include "shared_rows.h"
#include "step/loops/grad_stats_kernels.h"

namespace optim {
namespace {

// Recorded states call it one or the other.
constexpr std::string_view kModel = "model.";
constexpr std::string_view kMaster = "fp32_param", kMasterOfSets = "master";

// Bounds of a correct replay; docs/optimizer.md, "Tolerances", argues each.
constexpr double kMatrixUpdateBound = 3e-3;  // |a - b|_F / |b - start|_F, with the recorded norm
constexpr double kMatrixMasterBound = 5e-4;  // |a - b|, with a norm of our own
constexpr double kAdamMasterBound = 6e-8;    // |a - b|, with a norm of our own
constexpr double kMomentBound = 5e-7;        // |a - b|_F / |b|_F, with a norm of our own
constexpr double kBf16RoundingBound = 1.0 / 128;  // of an element: one unit in its last place

bool is_mean_of_squares(std::string_view state) {
  const auto known = std::ranges::find(all_states(), state, &StateSpec::name);
  return known != all_states().end() && known->kind == StateSpec::Kind::SecondMoment;
}

double ratio(double value, double bound) {
  if (value == 0) return 0;
  return bound == 0 ? std::numeric_limits<double>::infinity() : value / bound;
}

// A comparison with how much of its tolerance it uses: above 1 it fails.
struct Row {
  Difference difference;
  double used = 0;
};

class Judge {
 public:
  Judge(const Expected& expected, int64_t steps) : expected_(expected), steps_(steps) {}

  Row compare_item(const StateItem& item, const at::Tensor& ours) const {
    const at::Tensor theirs = expected_.state.tensor(item.kind, item.name, ours);
    const auto& tolerance = expected_.options.tolerance;
    const bool is_model = item.kind == "model";
    const double rtol = tolerance ? tolerance->rtol : is_model ? kBf16RoundingBound : 0;
    Row row{compare(ours, theirs, rtol)};
    if (row.difference.differing == 0) return row;
    if (tolerance) {
      row.used = ratio(row.difference.excess, tolerance->atol);
    } else if (is_model) {
      row.used =
          ratio(row.difference.excess, item.is_matrix_rule ? kMatrixMasterBound : kAdamMasterBound);
    } else if (item.kind == "fp32_param") {
      row.used = item.is_matrix_rule ? used_by_matrix(item, row.difference, theirs)
                                     : used_by_adam(row.difference);
    } else {
      // The square of a clipped gradient has twice the relative error of the norm that clipped it.
      const double bound = is_mean_of_squares(item.kind) ? 2 * kMomentBound : kMomentBound;
      row.used = used_by_state(row.difference, theirs, bound);
    }
    return row;
  }

 private:
  double used_by_matrix(const StateItem& item, const Difference& difference,
                        const at::Tensor& theirs) const {
    if (!expected_.options.recorded_grad_norm) return ratio(difference.max_abs, kMatrixMasterBound);
    const at::Tensor update = at::sub(theirs, expected_.start.at(item.id));
    const double length = std::sqrt(sum_of_squares(update));
    return ratio(std::sqrt(difference.square_sum), kMatrixUpdateBound * length);
  }

  // A square root that its library did not round correctly moves an element by one unit per step.
  double used_by_adam(const Difference& difference) const {
    const double roundings = ratio(difference.max_ulp, static_cast<double>(steps_));
    if (expected_.options.recorded_grad_norm) return roundings;
    return std::min(roundings, ratio(difference.max_abs, kAdamMasterBound));
  }

  double used_by_state(const Difference& difference, const at::Tensor& theirs, double bound) const {
    const bool is_exact = expected_.options.recorded_grad_norm;
    const double length = std::sqrt(sum_of_squares(theirs));
    return ratio(std::sqrt(difference.square_sum), is_exact ? 0 : bound * length);
  }

  const Expected& expected_;
  int64_t steps_;
};

std::vector<ComparedKind> by_kind(const std::vector<StateItem>& items,
                                  const SharedRows<Row>& rows) {
  std::vector<ComparedKind> kinds;
  std::vector<double> worst_used;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto found = std::ranges::find(kinds, items[i].kind, &ComparedKind::kind);
    const auto at = static_cast<size_t>(found - kinds.begin());
    if (found == kinds.end()) {
      kinds.push_back({.kind = items[i].kind});
      worst_used.push_back(0);
    }
    ComparedKind& kind = kinds[at];
    ++kind.tensors;
    if (rows[i].difference.differing == 0) ++kind.equal;
    kind.passed = kind.passed && rows[i].used <= 1;
    if (!kind.worst_tensor.empty() && !(rows[i].used > worst_used[at])) continue;
    worst_used[at] = rows[i].used;
    kind.worst_tensor = items[i].name;
    kind.worst = rows[i].difference;
  }
  return kinds;
}

// Moments come before the master, and that before the weight.
int order_in_step(const StateItem& item) {
  if (item.kind == "model") return 2;
  return item.kind == "fp32_param" ? 1 : 0;
}

void note_first(const std::vector<StateItem>& items, const SharedRows<Row>& rows,
                Comparison& found) {
  std::optional<size_t> first;
  const auto comes_before = [&](size_t a, size_t b) {
    const bool a_fails = rows[a].used > 1, b_fails = rows[b].used > 1;
    if (a_fails != b_fails) return a_fails;
    return items[a].id == items[b].id && order_in_step(items[a]) < order_in_step(items[b]);
  };
  for (size_t i = 0; i < items.size(); ++i) {
    if (rows[i].difference.differing == 0) continue;
    if (!first || comes_before(i, *first)) first = i;
  }
  if (!first) return;
  found.first = items[*first];
  found.difference = rows[*first].difference;
}

bool is_matrix_rule(const OptimizerGroup& group) {
  return rule_named(group.rule_config.name()).needs_matrix;
}

Row compare_step(const Expectation& state, const OptimizedParam& param) {
  Row row;
  const double theirs = state.step(param.model.info.name);
  if (theirs == static_cast<double>(param.step)) return row;
  row.difference.max_abs = std::abs(theirs - static_cast<double>(param.step));
  row.difference.differing = 1;
  row.used = std::numeric_limits<double>::infinity();
  return row;
}

}  // namespace

Expectation::Expectation(const std::filesystem::path& path, const ckpt::Limits& limits,
                         const Cuts& cuts)
    : cuts_(cuts), recording_(path, limits) {
  if (recording_.catalog().format != ckpt::Format::Safetensors) {
    state_ = read_training_state(recording_.checkpoint());
    tensors_ = catalog_of(*state_);
  }
  has_masters_ = std::ranges::any_of(recording_.catalog().tensors, [](const auto& tensor) {
    return tensor.key.starts_with("master.");
  });
}

std::string Expectation::key_of(const std::string& kind, const std::string& name) const {
  if (state_) return canonical_key(kind, name);
  return (kind == kMaster && has_masters_ ? std::string(kMasterOfSets) : kind) + "." + name;
}

at::Tensor Expectation::tensor(const std::string& kind, const std::string& name,
                               const at::Tensor& ours) const {
  const ckpt::Catalog& catalog = state_ ? tensors_ : recording_.catalog();
  const std::vector<int64_t> whole = cuts_.whole_shape(name, ours.sizes());
  const ckpt::Extents shape(whole.begin(), whole.end());
  const ckpt::TensorEntry& entry = recording_.find(catalog, key_of(kind, cuts_.whole_name(name)),
                                                   {shape, {dtype_of(ours.scalar_type())}});
  return cuts_.piece(load_tensor(recording_.checkpoint(), entry), name);
}

bool Expectation::has_steps() const {
  if (state_) return !state_->chain.empty();
  return std::ranges::any_of(recording_.catalog().tensors,
                             [](const auto& tensor) { return tensor.key.starts_with("step."); });
}

double Expectation::step(const std::string& piece) const {
  const std::string& name = cuts_.whole_name(piece);
  if (!state_) {
    const ckpt::TensorEntry& entry = recording_.find(
        "step." + name, {{}, {ckpt::DType::Float32, ckpt::DType::Float64, ckpt::DType::Int64}});
    return load_tensor(recording_.checkpoint(), entry).item<double>();
  }
  const auto found = std::ranges::find(state_->params, name,
                                       [](const TrainedParam& param) { return param.info.name; });
  if (found == state_->params.end()) recording_.refuse(name, "is missing");
  return static_cast<double>(saved_step(*state_, *found));
}

// "KIND.NAME" and the key of everything that may be compared.
std::vector<std::pair<std::string, std::string>> Expectation::contents() const {
  std::vector<std::pair<std::string, std::string>> found;
  const auto add = [&](const std::string& kind, const std::string& name) {
    found.emplace_back(kind + "." + name, key_of(kind, name));
  };
  if (state_) {
    for (const TrainedParam& param : state_->params) {
      add("model", param.info.name);
      for (const StateTensor& state : param.states) add(state.name, param.info.name);
    }
    return found;
  }
  for (const ckpt::TensorEntry& tensor : recording_.catalog().tensors) {
    const bool is_gradient =
        tensor.key.starts_with("init.") || parse_step_key("grad", tensor.key).has_value();
    const bool is_buffer = tensor.key.starts_with(kModel) &&
                           is_model_buffer(std::string_view(tensor.key).substr(kModel.size()));
    if (is_gradient || is_buffer) continue;
    const bool is_master = tensor.key.starts_with("master.");
    found.emplace_back(
        is_master ? std::string(kMaster) + tensor.key.substr(kMasterOfSets.size()) : tensor.key,
        tensor.key);
  }
  return found;
}

void Expectation::check_nothing_else(const std::set<std::string>& known) const {
  for (const auto& [item, key] : contents()) {
    if (!known.contains(item)) recording_.refuse(key, "does not match anything that was replayed");
  }
}

std::vector<StateItem> state_items(LayerWiseDistributedOptimizer& optimizer) {
  const std::vector<OptimizerGroup*> groups = optimizer.param_groups();
  const std::vector<Param>& params = optimizer.all_params();
  std::vector<StateItem> items;
  for (uint32_t id = 0; id < params.size(); ++id) {
    const OptimizerGroup& group = *groups[optimizer.ownership().group_of[id]];
    StateItem item{id, params[id].info.name, "model", is_matrix_rule(group)};
    items.push_back(item);
    if (params[id].param.scalar_type() != at::kFloat) {
      item.kind = "fp32_param";
      items.push_back(item);
    }
    for (const std::string_view state : group.rule->state_names()) {
      item.kind = state;
      items.push_back(item);
    }
    if (step_count_of(group.rule_config) != StepCount::None) {
      item.kind = "step";
      items.push_back(item);
    }
  }
  return items;
}

StateTensors::StateTensors(LayerWiseDistributedOptimizer& optimizer) {
  for (const OptimizedParam* const param : optimizer.get_parameters()) owned_[param->id] = param;
}

at::Tensor StateTensors::tensor(const StateItem& item) const {
  const OptimizedParam& param = *owned_.at(item.id);
  if (item.kind == "model") return param.model.param.cpu();
  if (item.kind == "fp32_param") return master_of(param).cpu();
  return param.state.at(item.kind).cpu();
}

std::map<uint32_t, at::Tensor> copy_matrix_masters(LayerWiseDistributedOptimizer& optimizer) {
  std::map<uint32_t, at::Tensor> masters;
  for (const OptimizerGroup* const group : optimizer.param_groups()) {
    if (!is_matrix_rule(*group)) continue;
    for (const OptimizedParam& param : group->params)
      masters[param.id] = master_of(param).clone().cpu();
  }
  return masters;
}

Comparison compare_state(LayerWiseDistributedOptimizer& optimizer, const Expected& expected,
                         Collectives& collectives) {
  std::vector<StateItem> items = state_items(optimizer);
  if (!expected.state.has_steps()) {
    std::erase_if(items, [](const StateItem& item) { return item.kind == "step"; });
  }
  std::set<std::string> known;
  for (const StateItem& item : items) {
    known.insert(item.kind + "." + expected.state.cuts().whole_name(item.name));
  }
  expected.state.check_nothing_else(known);
  const StateTensors tensors(optimizer);
  const Judge judge(expected, expected.options.steps.value_or(1));
  SharedRows<Row> rows(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!tensors.owns(items[i])) continue;
    rows.set(i, items[i].kind == "step" ? compare_step(expected.state, tensors.param(items[i].id))
                                        : judge.compare_item(items[i], tensors.tensor(items[i])));
  }
  rows.share(collectives);
  Comparison found;
  found.kinds = by_kind(items, rows);
  note_first(items, rows, found);
  return found;
}

}  // namespace optim
