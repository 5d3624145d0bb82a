#include <optim/ownership.h>

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <queue>
#include <string>
#include <string_view>
#include <utility>

#include <ckpt/error.h>
#include <optim/lpt_layout.h>
#include <optim/rule_table.h>

#include "sharding/refuse.h"

namespace optim {
namespace {

// Flat view of all groups: what is dealt, and by which weight.
struct Deal {
  Ownership ownership;
  std::vector<uint64_t> count;  // [id] elements
  std::vector<double> cost;     // [id] update_cost()
  std::vector<Shape> shape;     // [id]
};

Deal collect(std::span<const ParamGroup> groups) {
  Deal deal;
  Ownership& all = deal.ownership;
  all.group_count = static_cast<uint32_t>(groups.size());
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const GroupedParam& param : groups[group].params) {
      if (all.group_of.size() == std::numeric_limits<uint32_t>::max()) {
        refuse("more than 2^32 - 1 parameters");
      }
      all.group_of.push_back(static_cast<uint32_t>(group));
      all.is_expert.push_back(groups[group].is_expert_parallel);
      deal.count.push_back(element_count(param.info));
      deal.cost.push_back(update_cost(param.info, groups[group]));
      deal.shape.push_back(param.info.shape);
    }
  }
  all.owner.resize(all.group_of.size(), 0);
  all.dealt.resize(all.group_of.size());
  std::iota(all.dealt.begin(), all.dealt.end(), 0);
  return deal;
}

// Gives each rank its turn in the reference's order; the two sharing groups take turns apart.
void deal_ping_pong(Deal& deal, uint32_t dp_cp, uint32_t expt_dp) {
  Ownership& all = deal.ownership;
  std::ranges::stable_sort(all.dealt, {}, [&](uint32_t id) { return deal.count[id]; });
  uint64_t dense_turn = 0, expert_turn = 0;
  for (const uint32_t id : all.dealt) {
    all.owner[id] = all.is_expert[id] ? ping_pong_rank(expert_turn++, expt_dp)
                                      : ping_pong_rank(dense_turn++, dp_cp);
  }
}

// The ranks of one sharing group, least loaded first, lower rank first among equals.
class Loads {
 public:
  explicit Loads(uint32_t rank_count) {
    for (uint32_t rank = 0; rank < rank_count; ++rank) queue_.emplace(0.0, rank);
  }
  uint32_t give(double cost) {
    const auto [load, rank] = queue_.top();
    queue_.pop();
    queue_.emplace(load + cost, rank);
    return rank;
  }

 private:
  using Load = std::pair<double, uint32_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> queue_;
};

// Longest first to the least loaded rank: the largest load stays below mean + largest cost.
void deal_balanced(Deal& deal, uint32_t dp_cp, uint32_t expt_dp) {
  Ownership& all = deal.ownership;
  std::ranges::stable_sort(all.dealt, std::greater<>(), [&](uint32_t id) { return deal.cost[id]; });
  Loads dense(dp_cp), experts(expt_dp);
  for (const uint32_t id : all.dealt) {
    all.owner[id] = all.is_expert[id] ? experts.give(deal.cost[id]) : dense.give(deal.cost[id]);
  }
}

// One bucket of all dense parameters and one of all experts.
void deal_lpt(Deal& deal, uint32_t dp_cp, uint32_t expt_dp) {
  Ownership& all = deal.ownership;
  const std::vector<uint32_t> model_order = std::exchange(all.dealt, {});
  for (const bool experts : {false, true}) {
    std::vector<uint32_t> ids;
    std::vector<Shape> shapes;
    for (const uint32_t id : model_order) {
      if (all.is_expert[id] != experts) continue;
      ids.push_back(id);
      shapes.push_back(deal.shape[id]);
    }
    const LptLayout layout = lpt_layout(shapes, {.data_parallel = experts ? expt_dp : dp_cp});
    for (const uint32_t place : layout.assigned) {
      all.owner[ids[place]] = layout.shard[place];
      all.dealt.push_back(ids[place]);
    }
  }
}

void list_by_rank(Ownership& all, uint32_t dp_cp, uint32_t expt_dp) {
  all.dp_cp_params_list.resize(dp_cp);
  const bool experts = std::ranges::find(all.is_expert, true) != all.is_expert.end();
  if (experts && expt_dp > 1) all.expt_dp_params_list.resize(expt_dp);
  for (const uint32_t id : all.dealt) {
    if (!all.is_expert[id]) {
      all.dp_cp_params_list[all.owner[id]].push_back(id);
    } else if (expt_dp > 1) {
      all.expt_dp_params_list[all.owner[id]].push_back(id);
    }
  }
}

void require_positive(const ParallelSizes& sizes) {
  const std::array<std::pair<std::string_view, uint32_t>, 7> all = {
      {{"data_parallel", sizes.data_parallel},
       {"context_parallel", sizes.context_parallel},
       {"tensor_parallel", sizes.tensor_parallel},
       {"pipeline_parallel", sizes.pipeline_parallel},
       {"virtual_pipeline_parallel", sizes.virtual_pipeline_parallel},
       {"expert_parallel", sizes.expert_parallel},
       {"expert_tensor_parallel", sizes.expert_tensor_parallel}}};
  for (const auto& [name, size] : all) {
    if (size == 0) refuse("parallel size '" + std::string(name) + "' is 0; it must be at least 1");
  }
}

uint64_t product(std::initializer_list<uint64_t> sizes) {
  uint64_t result = 1;
  for (const uint64_t size : sizes) {
    if (result > std::numeric_limits<uint32_t>::max() / size) refuse("more than 2^32 - 1 ranks");
    result *= size;
  }
  return result;
}

}  // namespace

uint32_t ping_pong_rank(uint64_t turn, uint32_t rank_count) {
  const uint64_t in_round = turn % (2 * uint64_t{rank_count});
  return static_cast<uint32_t>(in_round < rank_count ? in_round
                                                     : 2 * uint64_t{rank_count} - 1 - in_round);
}

double update_cost(const ParamInfo& param, const ParamGroup& group) {
  const RuleDescription* const rule = find_rule(group.updated_by);
  const bool is_elementwise = rule == nullptr || rule->cost == nullptr || param.shape.size() != 2;
  return is_elementwise ? static_cast<double>(element_count(param)) : rule->cost(param.shape);
}

Ownership shard_params(std::span<const ParamGroup> groups, const ParallelSizes& sizes,
                       OwnershipPolicy policy) {
  // The reference deals nothing where dense parameters have one rank.
  const uint32_t dp_cp = sizes.dp_cp();
  return shard_params_over(groups, {dp_cp, dp_cp == 1 ? 1 : sizes.expt_dp()}, policy);
}

Ownership shard_params_over(std::span<const ParamGroup> groups, const SharingSizes& sizes,
                            OwnershipPolicy policy) {
  const uint32_t dp_cp = sizes.dp_cp, expt_dp = sizes.expt_dp;
  if (dp_cp == 0 || expt_dp == 0) refuse("a data-parallel group has no ranks");
  Deal deal = collect(groups);
  if (dp_cp == 1 && expt_dp == 1) return std::move(deal.ownership);
  switch (policy) {
    case OwnershipPolicy::PingPong: deal_ping_pong(deal, dp_cp, expt_dp); break;
    case OwnershipPolicy::Balanced: deal_balanced(deal, dp_cp, expt_dp); break;
    case OwnershipPolicy::Lpt: deal_lpt(deal, dp_cp, expt_dp); break;
  }
  list_by_rank(deal.ownership, dp_cp, expt_dp);
  return std::move(deal.ownership);
}

std::vector<std::vector<uint32_t>> Ownership::groups_on(RankInGroups rank) const {
  std::vector<std::vector<uint32_t>> kept(group_count);
  for (const uint32_t id : dealt) {
    if (owner[id] == (is_expert[id] ? rank.expt_dp : rank.dp_cp)) kept[group_of[id]].push_back(id);
  }
  return kept;
}

std::vector<LocalParam> local_params(std::span<const ParamGroup> groups, const Ownership& ownership,
                                     RankInGroups rank) {
  std::vector<LocalParam> local;
  const std::vector<std::vector<uint32_t>> kept = ownership.groups_on(rank);
  LocalParam next;
  for (size_t group = 0; group < kept.size(); ++group) {
    const bool same_optimizer =
        group > 0 && groups[group].optimizer_index == groups[group - 1].optimizer_index;
    next.group = same_optimizer ? next.group + 1 : 0;
    next.index = same_optimizer ? next.index : 0;
    next.optimizer = groups[group].optimizer_index;
    for (const uint32_t id : kept[group]) {
      next.id = id;
      local.push_back(next);
      ++next.index;
    }
  }
  return local;
}

uint64_t ParallelSizes::world() const {
  require_positive(*this);
  return product({tensor_parallel, context_parallel, data_parallel, pipeline_parallel});
}

uint32_t ParallelSizes::dp_cp() const {
  require_positive(*this);
  return static_cast<uint32_t>(product({data_parallel, context_parallel}));
}

uint32_t ParallelSizes::expt_dp() const {
  const uint64_t ranks = world();
  const uint64_t per_copy = product({expert_tensor_parallel, expert_parallel, pipeline_parallel});
  if (ranks % per_copy != 0) {
    refuse(std::to_string(ranks) + " ranks are not a multiple of expert_tensor_parallel * " +
           "expert_parallel * pipeline_parallel = " + std::to_string(per_copy));
  }
  return static_cast<uint32_t>(ranks / per_copy);
}

}  // namespace optim
