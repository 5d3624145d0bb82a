#pragma once

#include <compare>
#include <vector>

#include <ckpt/glob.h>
#include <optim/param_group.h>

namespace optim {

// An override whose globs are read once, not for each parameter. The override must outlive it.
struct Selector {
  explicit Selector(const ConfigOverrides::value_type& entry);
  bool matches(const ParamInfo& param) const;

  std::vector<ckpt::Glob> globs;
  ParamKey rest;
  const ParamGroupOverride& override;
};
using Selectors = std::vector<Selector>;

// All that decides the group of a parameter: 10^6 parameters have few different ones.
struct KeyTraits {
  std::vector<bool> matched;  // [override]
  bool is_expert_parallel = false;
  bool is_scalar = false;  // an emerging optimizer leaves it to the scalar one
  bool is_matrix = false;
  auto operator<=>(const KeyTraits&) const = default;
};
KeyTraits traits_of(const ParamInfo& param, const Selectors& overrides);

}  // namespace optim
