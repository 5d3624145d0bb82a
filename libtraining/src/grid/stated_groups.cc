// Parameter groups that a checkpoint states, matched with those that its model's parameters make.
#include "grid/stated_groups.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

struct Identity {
  double wd_mult = 1, lr_mult = 1;
  bool is_expert_parallel = false, is_decoupled_lr = false;
  bool operator==(const Identity&) const = default;
};

bool flag_of(const Value& group, std::string_view key) {
  const auto value = group.find(key);
  return value && value->is(Kind::Bool) && value->as_bool();
}

Identity identity_of(const Value& group) {
  return {number_in(group, "wd_mult").value_or(1), number_in(group, "lr_mult").value_or(1),
          flag_of(group, "is_expert_parallel"), flag_of(group, "is_decoupled_lr")};
}

// Versions that say is_decoupled_lr say it of groups with a learning rate of their own.
Identity identity_of(const ParamGroup& group, bool says_decoupled) {
  return {group.wd_mult, group.lr_mult, group.is_expert_parallel,
          says_decoupled ? !group.default_config : group.is_decoupled_lr};
}

}  // namespace

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
