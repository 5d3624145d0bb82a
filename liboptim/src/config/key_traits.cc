// What decides the group of a parameter.
#include "config/key_traits.h"

#include <algorithm>

namespace optim {
namespace {

// What an emerging optimizer leaves to the scalar one, which updates matrices only. The reference
// hard-codes adam; we read muon_scalar_optimizer, as documented.
bool is_for_scalar_optimizer(const ParamInfo& param) {
  return param.attributes.is_embedding_or_output_parameter || !param.attributes.use_muon ||
         param.shape.size() != 2;
}

}  // namespace

Selector::Selector(const ConfigOverrides::value_type& entry)
    : globs(entry.first.name.begin(), entry.first.name.end()),
      rest(entry.first),
      override(entry.second) {
  rest.name.clear();
}

bool Selector::matches(const ParamInfo& param) const {
  return std::ranges::any_of(globs, [&](const auto& g) { return g.matches(param.name); }) ||
         rest.matches(param, param.name);
}

KeyTraits traits_of(const ParamInfo& param, const Selectors& overrides) {
  KeyTraits traits{.matched = {}, .is_expert_parallel = !param.attributes.allreduce};
  for (const Selector& selector : overrides) traits.matched.push_back(selector.matches(param));
  traits.is_scalar = is_for_scalar_optimizer(param);
  traits.is_matrix = param.shape.size() == 2;
  return traits;
}

}  // namespace optim
