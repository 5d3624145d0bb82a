#include <optim/rule_table.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim {
namespace {

// What is asked for often, made anew when a rule is added. Old ones are kept: they are in use.
struct Lists {
  std::vector<const RuleDescription*> rows;
  std::vector<StateSpec> states;
};

class Table {
 public:
  Table() {
    for (const RuleDescription& row : {rows::adam(), rows::muon(), rows::sgd(), rows::lion(),
                                       rows::adaptive_muon(), rows::soap()}) {
      rows_.push_back(row);
    }
    list();
  }

  void add(const RuleDescription& row) {
    const std::lock_guard lock(mutex_);
    rows_.push_back(row);
    list();
  }

  const Lists& lists() const { return *latest_.load(); }

 private:
  void list() {
    Lists& made = lists_.emplace_back();
    constexpr int64_t kAny[] = {1, 1};
    for (const RuleDescription& row : rows_) {
      made.rows.push_back(&row);
      for (StateSpec& state : row.states(row.defaults(), ParamShape(kAny))) {
        const auto known = std::ranges::find(made.states, state.name, &StateSpec::name);
        if (known == made.states.end()) made.states.push_back(std::move(state));
      }
    }
    latest_ = &made;
  }

  std::mutex mutex_;
  std::deque<RuleDescription> rows_;  // where they are is remembered
  std::deque<Lists> lists_;
  std::atomic<const Lists*> latest_;
};

Table& table() {
  static Table all;
  return all;
}

}  // namespace

std::span<const RuleDescription* const> rule_table() { return table().lists().rows; }

const RuleDescription* find_rule(std::string_view name) {
  const auto rows = rule_table();
  const auto found = std::ranges::find(rows, name, &RuleDescription::name);
  return found == rows.end() ? nullptr : *found;
}

const RuleDescription& rule_named(std::string_view name) {
  if (const RuleDescription* const row = find_rule(name)) return *row;
  std::string known;
  const auto rows = rule_table();
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool is_last = i + 1 == rows.size();
    known += (i == 0 ? "" : is_last ? " and " : ", ") + std::string(rows[i]->name);
  }
  refuse_key("optimizer",
             "the optimizer '" + std::string(name) + "' is not supported, only " + known,
             ckpt::ErrorCode::Unsupported);
}

void add_rule(const RuleDescription& rule) {
  const bool is_whole = rule.defaults != nullptr && rule.settings != nullptr &&
                        rule.fields != nullptr && rule.states != nullptr && rule.make != nullptr;
  if (rule.name.empty() || !is_whole) {
    refuse_key(rule.name, "a rule needs a name, defaults, settings, fields, states and make");
  }
  if (rule.defaults().name() != rule.name) refuse_key(rule.name, "its settings have another name");
  if (find_rule(rule.name) != nullptr) refuse_key(rule.name, "a rule of this name is known");
  table().add(rule);
}

std::vector<Setting> settings_of(RuleConfig& config) {
  return rule_named(config.name()).settings(config.settings());
}

std::vector<StateSpec> states_of(const RuleConfig& config, ParamShape shape) {
  return rule_named(config.name()).states(config, shape);
}

StepCount step_count_of(const RuleConfig& config) {
  const RuleDescription& row = rule_named(config.name());
  return row.step_count != nullptr ? row.step_count(config) : StepCount::None;
}

const QkvSplit* qkv_split_of(const RuleConfig& config) {
  auto& changeable = const_cast<RuleConfig&>(config);  // settings are listed by where they are
  for (const Setting& setting : settings_of(changeable)) {
    const auto* const split = std::get_if<std::optional<QkvSplit>*>(&setting.place);
    if (split != nullptr) return *split && **split ? &***split : nullptr;
  }
  return nullptr;
}

std::span<const StateSpec> all_states() { return table().lists().states; }

}  // namespace optim
