// Groups are made anew of the model's parameters; settings come from the groups of the source.
#include "grid/target_groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ckpt/error.h>

#include "grid/layer_wise_view.h"
#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::NodeId;
using ckpt::Value;

constexpr std::string_view kIsExpert = "is_expert_parallel";

// The first setting in which two groups differ, but for whether they are of experts.
std::optional<std::string> difference(const Value& a, const Value& b) {
  for (const auto& [group, other_group] : {std::pair(a, b), std::pair(b, a)}) {
    for (size_t i = 0; i < group.item_count(); ++i) {
      const auto [key, value] = group.item(i);
      if (key.is(ckpt::Kind::Str) && key.text() == kIsExpert) continue;
      const auto other = key.is(ckpt::Kind::Str) ? other_group.find(key.text()) : std::nullopt;
      if (!other || first_difference(value, *other)) return ckpt::key_text(key);
    }
  }
  return std::nullopt;
}

NodeId stated_group(const TrainingState& source, const ParamGroup& group) {
  const auto node_of = [&](const GroupedParam& param) {
    const TrainedParam& of = source.params[param.index];
    return source.chain.at(of.optimizer).groups.at(of.group);
  };
  const NodeId first = node_of(group.params.front());
  std::set<NodeId> seen = {first};
  for (const GroupedParam& param : group.params) {
    const NodeId node = node_of(param);
    if (!seen.insert(node).second) continue;
    const ckpt::ValueTree& tree = source.common.tree;
    if (const auto key = difference(tree.value(first), tree.value(node))) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                        "its parameter group has another '" + ckpt::escaped(*key) +
                            "' than that of '" + ckpt::escaped(group.params.front().info.name) +
                            "', but both would be in one group",
                        "with --ep above 1 experts keep groups of their own");
    }
  }
  return first;
}

}  // namespace

std::vector<uint32_t> TargetGroups::of_optimizer(uint32_t index) const {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < optimizer.size(); ++i) {
    if (optimizer[i] == index) found.push_back(i);
  }
  return found;
}

const TrainedParam* dense_among_experts(const TrainingState& source) {
  for (const TrainedParam& param : source.params) {
    const bool has_group = param.info.requires_grad && param.optimizer < source.chain.size() &&
                           param.group < source.chain[param.optimizer].groups.size();
    if (!has_group || param.info.name.find(".experts.") != std::string::npos) continue;
    const NodeId group = source.chain[param.optimizer].groups[param.group];
    const auto flag = source.common.tree.value(group).find(kIsExpert);
    if (flag && flag->is(ckpt::Kind::Bool) && flag->as_bool()) return &param;
  }
  return nullptr;
}

TargetGroups target_groups(const TrainingState& source, const ParallelSizes& sizes) {
  TargetGroups target;
  if (source.chain.empty()) return target;
  if (const TrainedParam* const dense = dense_among_experts(source)) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = {}, .key = dense->info.name},
                      std::string(kDenseAmongExperts));
  }
  target.groups = groups_of(source.args(), sizes, source.params);
  for (const ParamGroup& group : target.groups) {
    target.stated.push_back(stated_group(source, group));
    target.optimizer.push_back(group.optimizer_index);
  }
  return target;
}

NodeId carry_group(const TrainingState& source, const TargetGroups& groups, uint32_t group,
                   ckpt::ArchiveBuilder& archive) {
  const Value stated = source.common.tree.value(groups.stated[group]);
  const NodeId carried = archive.carry(stated, source.common);
  const auto known = stated.find(kIsExpert);
  if (known && known->is(ckpt::Kind::Bool) &&
      known->as_bool() != groups.groups[group].is_expert_parallel) {
    archive.tree().put(carried, kIsExpert,
                       archive.tree().boolean(groups.groups[group].is_expert_parallel));
  }
  return carried;
}

}  // namespace optim
