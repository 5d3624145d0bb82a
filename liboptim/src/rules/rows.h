#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <ckpt/error.h>
#include <optim/emerging_rules.h>
#include <optim/rule_table.h>
#include <optim/update_modes.h>

namespace optim {

// The reference's names of each enumeration's members, in the order of the enumerators.
inline constexpr std::string_view kScaleModes[] = {"spectral", "unit_rms_norm", "shape_scaling"};
inline constexpr std::string_view kPrecisions[] = {"highest", "high", "medium"};
inline constexpr std::string_view kTpModes[] = {"blockwise", "duplicated", "distributed"};
inline constexpr std::string_view kCoefficients[] = {
    "simple", "quintic", "polar_express", "cans", "aol", "deepseekv4", "cubic5", "custom"};
inline constexpr std::string_view kMoment2Methods[] = {"adamuon", "normuon", "namo"};
inline constexpr std::string_view kDecayMethods[] = {"decoupled", "independent", "l2", "palm"};
inline constexpr std::string_view kEras[] = {"0.2", "0.3"};
inline constexpr std::string_view kSchedules[] = {"constant", "linear", "cosine", "steps"};
inline constexpr std::string_view kAdamArithmetics[] = {"torch", "fused_adam", "transformer_engine",
                                                        "fused"};

constexpr std::span<const std::string_view> names_of(MuonScaleMode) { return kScaleModes; }
constexpr std::span<const std::string_view> names_of(MatmulPrecision) { return kPrecisions; }
constexpr std::span<const std::string_view> names_of(MuonTpMode) { return kTpModes; }
constexpr std::span<const std::string_view> names_of(NsCoefficients) { return kCoefficients; }
constexpr std::span<const std::string_view> names_of(Moment2Method) { return kMoment2Methods; }
constexpr std::span<const std::string_view> names_of(EmergingOptimizers) { return kEras; }
constexpr std::span<const std::string_view> names_of(PreconditionSchedule::Kind) {
  return kSchedules;
}
constexpr std::span<const std::string_view> names_of(WeightDecayMethod) { return kDecayMethods; }
constexpr std::span<const std::string_view> names_of(AdamArithmetic) { return kAdamArithmetics; }

template <typename Mode>
std::optional<Mode> mode_named(std::string_view text) {
  const auto names = names_of(Mode{});
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<Mode>(i);
  }
  return std::nullopt;
}

}  // namespace optim

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

// A fact of the rule of this name; false where there is none.
inline bool has(bool RuleDescription::*fact, std::string_view rule) {
  const RuleDescription* const row = find_rule(rule);
  return row != nullptr && row->*fact;
}

// The value of a setting; std::monostate: None, or a list of ours, which no group and no trace has.
using SettingValue = std::variant<std::monostate, bool, int64_t, double, std::string>;
inline SettingValue value_of(const SettingPlace& place) {
  struct Visitor {
    SettingValue operator()(const bool* value) const { return *value; }
    SettingValue operator()(const int64_t* value) const { return *value; }
    SettingValue operator()(const double* value) const { return *value; }
    SettingValue operator()(const std::optional<bool>* value) const {
      return *value ? SettingValue(**value) : SettingValue();
    }
    SettingValue operator()(const SettingChoice& choice) const {
      return std::string(choice.names[*choice.value]);
    }
    SettingValue operator()(const void*) const { return {}; }
  };
  return std::visit(Visitor{}, place);
}

// Of settings that a field of groups holds as a list (betas): which of them this is.
struct PlaceInList {
  size_t index = 0, count = 0;
};
inline PlaceInList place_in_list(const Setting& setting, std::span<const Setting> settings) {
  PlaceInList place;
  for (const Setting& other : settings) {
    if (other.field != setting.field) continue;
    if (other.name == setting.name) place.index = place.count;
    ++place.count;
  }
  return place;
}

// Of a state as large as its parameter.
StateSpec moment(std::string_view name, StateSpec::Kind kind, ParamShape shape);

// Throws Error(Unsupported): emerging_optimizers 0.2 does not have palm.
void check_decay(WeightDecayMethod method, EmergingOptimizers era);

// Newton-Schulz on the short side of a matrix: long * short^2.
double matrix_cost(ParamShape shape);

}  // namespace optim::rows
