#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <optim/layout_export.h>
#include <optim/rule_config.h>

// The table of update rules: all that the library knows of a rule but its arithmetic.
namespace optim {

class UpdateRule;

enum class SettingRange : uint8_t { Any, AtLeastZero, AtLeastOne, Averaging };  // last: [0, 1)

struct SettingChoice {
  uint8_t* value = nullptr;  // of an enumeration
  std::span<const std::string_view> names = {};
};
using SettingPlace = std::variant<bool*, int64_t*, double*, std::optional<bool>*, SettingChoice,
                                  std::optional<QkvSplit>*, std::vector<NewtonSchulzStep>*,
                                  std::vector<std::pair<int64_t, int64_t>>*>;

// One setting of a rule, in the rule's struct of settings.
struct Setting {
  std::string_view name;  // as the constructor of the reference calls it: "momentum", "use_eigh"
  SettingPlace place;
  SettingRange range = SettingRange::Any;
  std::string_view config = {};  // the field of OptimizerConfig that decides it; empty: none
  std::string_view field = {};   // the field of parameter groups that holds it; empty: none
};

// A field of a parameter group, in the order of checkpoints.
struct GroupField {
  enum class Content : uint8_t {
    Settings,  // those of this field: one value, or a list of several
    WeightDecay,
    Step,  // updates done; left out of an empty group
    False,
    True,
    Zero,
    None
  };
  std::string_view name;
  Content content = Content::Settings;
};

enum class InitialState : uint8_t { Zeros, Identity };

// A state of one parameter; fp32. Second moments are means of squares.
struct StateSpec {
  enum class Kind : uint8_t { FirstMoment, SecondMoment, Factor };  // a factor is always fp32
  std::string_view name;
  Kind kind = Kind::FirstMoment;
  std::vector<int64_t> shape = {};
  InitialState initial = InitialState::Zeros;
  bool own_shape = false;  // may have another shape than its parameter
};

// How checkpoints count the updates of a parameter.
enum class StepCount : uint8_t { None, Tensor, Number, PerGroup };

// How far a correct implementation may be from recorded values: docs/optimizer.md, "Tolerances".
struct TraceBound {
  double max_scaled = 1e300, max_ulp = 1e300;
};

using ParamShape = std::span<const int64_t>;
struct RuleDescription {
  std::string_view name;      // OptimizerConfig::optimizer, ParamGroup::updated_by, Settings::kName
  bool is_emerging = false;   // leaves embeddings and all that is not 2-D to a scalar optimizer
  bool needs_matrix = false;  // updates 2-D parameters only, as a whole
  bool by_element = false;    // each element from its own numbers: ranges can be updated apart
  bool has_tp_modes = false;  // muon_tp_mode says what tensor-parallel ranks do
  bool checks_states = false;   // UpdateRule::check() looks at states
  bool in_reference = false;    // get_megatron_optimizer of core 0.18-dev makes it
  std::string_view trace = {};  // "class" of its recorded steps; empty: read by name elsewhere
  std::span<const std::string_view> unsupported_options = {};  // of groups; set ones are refused

  RuleConfig (*defaults)() = nullptr;
  std::vector<Setting> (*settings)(std::any& settings) = nullptr;
  std::vector<GroupField> (*fields)(const RuleConfig& config) = nullptr;
  // Of a parameter of this shape, in the order of creation.
  std::vector<StateSpec> (*states)(const RuleConfig& config, ParamShape shape) = nullptr;
  StepCount (*step_count)(const RuleConfig& config) = nullptr;  // null: None
  TraceBound (*bound)(const RuleConfig& config) = nullptr;
  double (*cost)(ParamShape shape) = nullptr;  // of an update; null: the number of elements
  // Throws Error(InvalidArgument or Unsupported), with the setting's name, for what contradicts.
  void (*check)(const RuleConfig& config) = nullptr;
  // Of a rule that a program adds. The library's own are made where LibTorch is: null here.
  std::unique_ptr<UpdateRule> (*make)(const RuleConfig& config) = nullptr;
};

// The library's own first, others as they were added. Rows and lists stay where they are.
OPTIM_LAYOUT_EXPORT std::span<const RuleDescription* const> rule_table();
OPTIM_LAYOUT_EXPORT const RuleDescription* find_rule(std::string_view name);  // null: none
// Throws Error(Unsupported) with the names of those that are known; where().key is "optimizer".
OPTIM_LAYOUT_EXPORT const RuleDescription& rule_named(std::string_view name);
// A rule of the caller's own: from then on known by its name everywhere. Throws
// Error(InvalidArgument) for a name that is taken and for a row that lacks a function.
void add_rule(const RuleDescription& rule);

// The settings of a config, to be read or changed in place.
OPTIM_LAYOUT_EXPORT std::vector<Setting> settings_of(RuleConfig& config);
OPTIM_LAYOUT_EXPORT std::vector<StateSpec> states_of(const RuleConfig& config, ParamShape shape);
OPTIM_LAYOUT_EXPORT StepCount step_count_of(const RuleConfig& config);
// How its fused qkv weights are split; null where they are not, and for rules that cannot.
OPTIM_LAYOUT_EXPORT const QkvSplit* qkv_split_of(const RuleConfig& config);
// Of all rules, each once, in the order of creation.
OPTIM_LAYOUT_EXPORT std::span<const StateSpec> all_states();

}  // namespace optim
