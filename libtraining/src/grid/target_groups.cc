// Groups are made anew of the model's parameters; settings come from the groups of the source.
#include "grid/target_groups.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr std::string_view kIsExpert = "is_expert_parallel";

// The first setting in which two groups differ, but for whether they are of experts.
std::optional<std::string> difference(const Value& a, const Value& b) {
  for (const auto& [group, other_group] : {std::pair(a, b), std::pair(b, a)}) {
    for (const auto& [key, value] : ckpt::items_of(group)) {
      if (key.is(Kind::Str) && key.text() == kIsExpert) continue;
      const auto other = key.is(Kind::Str) ? other_group.find(key.text()) : std::nullopt;
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
    const ValueTree& tree = source.common.tree;
    if (const auto key = difference(tree.value(first), tree.value(node))) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                  "its parameter group has another '" + ckpt::escaped(*key) + "' than that of '" +
                      ckpt::escaped(group.params.front().info.name) +
                      "', but both would be in one group",
                  "with --ep above 1 experts keep groups of their own");
    }
  }
  return first;
}

struct Identity {
  double wd_mult = 1, lr_mult = 1;
  bool is_expert_parallel = false, is_decoupled_lr = false;
  bool operator==(const Identity&) const = default;
};

Identity identity_of(const Value& group) {
  return {number_in(group, "wd_mult").value_or(1), number_in(group, "lr_mult").value_or(1),
          is_true(group, "is_expert_parallel"), is_true(group, "is_decoupled_lr")};
}

// Versions that say is_decoupled_lr say it of groups with a learning rate of their own.
Identity identity_of(const ParamGroup& group, bool says_decoupled) {
  return {group.wd_mult, group.lr_mult, group.is_expert_parallel,
          says_decoupled ? !group.default_config : group.is_decoupled_lr};
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
    if (is_true(source.common.tree.value(group), kIsExpert)) return &param;
  }
  return nullptr;
}

TargetGroups target_groups(const TrainingState& source, const ParallelSizes& sizes) {
  TargetGroups target;
  if (source.chain.empty()) return target;
  if (const TrainedParam* const dense = dense_among_experts(source)) {
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = dense->info.name},
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
  if (known && known->is(Kind::Bool) &&
      known->as_bool() != groups.groups[group].is_expert_parallel) {
    archive.tree().put(carried, kIsExpert,
                       archive.tree().boolean(groups.groups[group].is_expert_parallel));
  }
  return carried;
}

std::optional<double> number_in(const Value& group, std::string_view key) {
  const auto value = group.find(key);
  if (!value || !(value->is(Kind::Int) || value->is(Kind::Float))) return std::nullopt;
  return value->as_float();
}

std::span<const ParamGroup> groups_of_optimizer(std::span<const ParamGroup> groups,
                                                uint32_t optimizer) {
  const auto first = std::ranges::lower_bound(groups, optimizer, {}, &ParamGroup::optimizer_index);
  const auto last = std::ranges::upper_bound(groups, optimizer, {}, &ParamGroup::optimizer_index);
  return {first, last};
}

std::vector<size_t> match_stated_groups(std::span<const Value> stated,
                                        std::span<const ParamGroup> groups) {
  const bool says_decoupled = std::ranges::any_of(
      stated, [](const Value& group) { return identity_of(group).is_decoupled_lr; });
  std::vector<bool> is_taken(stated.size());
  std::vector<size_t> places;
  for (const ParamGroup& group : groups) {
    const Identity wanted = identity_of(group, says_decoupled);
    size_t place = 0;
    while (place < stated.size() && (is_taken[place] || identity_of(stated[place]) != wanted)) {
      ++place;
    }
    if (place == stated.size()) {
      places.resize(groups.size());
      std::iota(places.begin(), places.end(), size_t{0});
      return places;
    }
    is_taken[place] = true;
    places.push_back(place);
  }
  return places;
}

}  // namespace optim
