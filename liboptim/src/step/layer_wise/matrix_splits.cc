#include "step/layer_wise/matrix_splits.h"

#include <ATen/ops/zeros.h>

#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <algorithm>
#include <sstream>
#include <utility>

#include "rules/refuse_key.h"

namespace optim {
namespace {

// A parameter of which every rank has a part, and whether they update it together.
struct Part {
  OptimizedParam* param = nullptr;
  bool is_together = false;

  const ParamInfo& info() const { return param->model.info; }
};

bool is_part(const ParamInfo& info) {
  return info.attributes.tensor_model_parallel || info.attributes.partition_dim >= 0;
}

void check_attributes(const ParamInfo& info) {
  const ParamAttributes& attributes = info.attributes;
  if (!attributes.tensor_model_parallel) {
    refuse_key(info.name, "has a partition_dim, but is not tensor_model_parallel");
  }
  if (attributes.partition_dim == 0 || attributes.partition_dim == 1) return;
  refuse_key(info.name, "is tensor_model_parallel, but its partition_dim is neither 0 nor 1");
}

// What ranks tell each other: a line for each part, its name last.
std::string text_of(const std::vector<Part>& parts) {
  std::ostringstream text;
  for (const Part& part : parts) {
    const at::IntArrayRef sizes = part.param->model.param.sizes();
    text << part.is_together << ' ' << part.info().attributes.partition_dim << ' ' << sizes.size();
    for (const int64_t size : sizes) text << ' ' << size;
    text << ' ' << part.info().name << '\n';
  }
  return text.str();
}

struct StatedPart {
  bool is_together = false;
  int dim = -1;
  std::vector<int64_t> shape = {};
  std::string name = {};
};

std::vector<StatedPart> parts_in(const std::string& text) {
  std::vector<StatedPart> parts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    StatedPart part;
    size_t dims = 0;
    words >> part.is_together >> part.dim >> dims;
    part.shape.resize(dims);
    for (int64_t& size : part.shape) words >> size;
    words.ignore(1);
    std::getline(words, part.name);
    parts.push_back(std::move(part));
  }
  return parts;
}

// Throws where they are not parts of one parameter.
void check_fits(const StatedPart& mine, const StatedPart& theirs, size_t rank) {
  const std::string other = "tensor-parallel rank " + std::to_string(rank);
  if (mine.name != theirs.name) {
    refuse_key(mine.name, other + " has '" + theirs.name + "' in its place");
  }
  const bool same_kind = mine.is_together == theirs.is_together && mine.dim == theirs.dim &&
                         mine.shape.size() == theirs.shape.size();
  bool fits = same_kind;
  for (size_t dim = 0; fits && mine.is_together && dim < mine.shape.size(); ++dim) {
    fits = static_cast<int>(dim) == mine.dim ? theirs.shape[dim] > 0
                                             : mine.shape[dim] == theirs.shape[dim];
  }
  if (!fits) refuse_key(mine.name, "its part does not fit that of " + other);
}

// Of one process group, by its address.
std::vector<Part> parts_of(const std::vector<OptimizerGroup*>& all, const void* group,
                           const ProcessGroupCollection& groups) {
  std::vector<Part> parts;
  for (OptimizerGroup* const of : all) {
    const bool has_tp_modes = rule_named(of->rule_config.name()).has_tp_modes;
    for (OptimizedParam& param : of->params) {
      const ParamInfo& info = param.model.info;
      if (!is_part(info) || tensor_parallel_group(info, groups).get() != group) continue;
      if (has_tp_modes) check_attributes(info);
      parts.push_back({&param, has_tp_modes});
    }
  }
  return parts;
}

}  // namespace

const ProcessGroupPtr& tensor_parallel_group(const ParamInfo& info,
                                             const ProcessGroupCollection& groups) {
  return info.attributes.expert_tp && groups.expt_tp ? groups.expt_tp : groups.tp;
}

bool is_duplicate(const ParamInfo& info, const ProcessGroupCollection& groups) {
  const int tp_rank = rank_in(tensor_parallel_group(info, groups)).rank;
  return !info.attributes.tensor_model_parallel && tp_rank != 0;
}

MatrixSplits::MatrixSplits(const std::vector<OptimizerGroup*>& all, MuonTpMode mode,
                           const ProcessGroupCollection& groups, const Collectives& failures)
    : groups_(groups) {
  if (mode == MuonTpMode::Blockwise) return;
  for (const ProcessGroupPtr* const group : {&groups_.tp, &groups_.expt_tp}) {
    const void* const address = group->get();
    const bool is_known =
        std::ranges::any_of(ranks_, [&](const Ranks& ranks) { return ranks.group == address; });
    if (rank_in(*group).size == 1 || is_known) continue;
    ranks_.push_back({address, Collectives(*group), make_matrix_ranks(*group, failures)});
    ranks_.back().collectives.share_failures_with(failures);
  }
  for (Ranks& ranks : ranks_) share(all, mode, ranks);
}

void MatrixSplits::share(const std::vector<OptimizerGroup*>& all, MuonTpMode mode, Ranks& ranks) {
  const std::vector<Part> parts = parts_of(all, ranks.group, groups_);
  std::vector<std::vector<StatedPart>> by_rank;
  for (const std::string& text : ranks.collectives.all_gather(text_of(parts))) {
    by_rank.push_back(parts_in(text));
  }
  const std::vector<StatedPart>& mine = by_rank[static_cast<size_t>(ranks.collectives.rank())];
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (size_t i = 0; i < std::min(parts.size(), by_rank[rank].size()); ++i) {
      check_fits(mine[i], by_rank[rank][i], rank);
    }
    if (by_rank[rank].size() == parts.size()) continue;
    refuse_key("tp", "tensor-parallel rank " + std::to_string(rank) + " has parts of " +
                         std::to_string(by_rank[rank].size()) + " parameters, this one of " +
                         std::to_string(parts.size()));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    first_shapes_[parts[i].info().name] = by_rank.front()[i].shape;
    if (!parts[i].is_together) continue;
    MatrixSplit split = {.mode = mode, .dim = mine[i].dim, .ranks = ranks.matrix_ranks};
    for (const auto& stated : by_rank) {
      split.extents.push_back(stated[i].shape[static_cast<size_t>(split.dim)]);
    }
    parts[i].param->split = std::make_shared<const MatrixSplit>(std::move(split));
  }
}

std::vector<int64_t> MatrixSplits::dealt_shape(const ParamInfo& info) const {
  const auto first = first_shapes_.find(info.name);
  return first == first_shapes_.end() ? info.shape : first->second;
}

std::vector<OptimizedParam*> MatrixSplits::shared_by(
    const Ranks& ranks, const std::vector<OptimizedParam*>& params) const {
  std::vector<OptimizedParam*> shared;
  for (OptimizedParam* const param : params) {
    const bool is_theirs = tensor_parallel_group(param->model.info, groups_).get() == ranks.group;
    if (param->split && is_theirs) shared.push_back(param);
  }
  return shared;
}

void MatrixSplits::check_owners(const std::vector<OptimizedParam*>& updated_here) {
  for (Ranks& ranks : ranks_) {
    std::string names;
    for (const OptimizedParam* const param : shared_by(ranks, updated_here)) {
      names += param->model.info.name + '\n';
    }
    const std::vector<std::string> all = ranks.collectives.all_gather(names);
    if (std::ranges::all_of(all, [&](const std::string& theirs) { return theirs == names; })) {
      continue;
    }
    refuse_key("muon_tp_mode",
               "tensor-parallel ranks own different parameters; their dense parameters "
               "and groups must be alike");
  }
}

std::optional<std::string> MatrixSplits::part_without_grad(
    const std::vector<OptimizedParam*>& updated_here) {
  std::optional<std::string> found;
  for (Ranks& ranks : ranks_) {
    const std::vector<OptimizedParam*> shared = shared_by(ranks, updated_here);
    if (shared.empty()) continue;  // on all ranks of the group
    const auto count = static_cast<int64_t>(shared.size());
    at::Tensor largest = at::zeros({2, count}, at::kLong);
    auto* const present = largest.mutable_data_ptr<int64_t>();
    auto* const absent = present + count;
    for (size_t i = 0; i < shared.size(); ++i) {
      (shared[i]->grad.defined() ? present : absent)[i] = 1;
    }
    ranks.collectives.all_reduce_max(largest);
    for (size_t i = 0; i < shared.size() && !found; ++i) {
      if (present[i] != 0 && absent[i] != 0) found = shared[i]->model.info.name;
    }
  }
  return found;
}

}  // namespace optim
