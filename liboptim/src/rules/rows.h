#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <ckpt/error.h>
#include <optim/emerging_rules.h>
#include <optim/rule_table.h>

#include "rules/mode_names.h"

// What rows of the table of rules have in common; a row is a function, in the file of its rule.
namespace optim::rows {

RuleDescription adam();
RuleDescription sgd();
RuleDescription lion();
RuleDescription muon();
RuleDescription adaptive_muon();
RuleDescription soap();

std::vector<Setting> muon_settings(MuonRule& rule);

template <class Enum>
SettingChoice choice(Enum& value) {
  static_assert(std::same_as<std::underlying_type_t<Enum>, uint8_t>);
  return {reinterpret_cast<uint8_t*>(&value), names_of(value)};
}

template <class Rule>
RuleConfig defaults() {
  return Rule();
}

// A row's function over its own settings, of `list(Rule&)`.
template <class Rule, std::vector<Setting> (*list)(Rule&)>
std::vector<Setting> settings(std::any& any) {
  return list(std::any_cast<Rule&>(any));
}

// Of a state as large as its parameter.
StateSpec moment(std::string_view name, StateSpec::Kind kind, ParamShape shape);

[[noreturn]] void refuse_setting(ckpt::ErrorCode code, std::string_view name,
                                 const std::string& problem);

// Throws Error(Unsupported): emerging_optimizers 0.2 does not have palm.
void check_decay(WeightDecayMethod method, EmergingOptimizers era);

// Newton-Schulz on the short side of a matrix: long * short^2.
double matrix_cost(ParamShape shape);

}  // namespace optim::rows
