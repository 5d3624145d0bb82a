#include "trace_settings.h"

#include <algorithm>
#include <utility>

namespace optim {
namespace {

class SettingReader {
 public:
  SettingReader(const JsonFields& json, const std::vector<Setting>& settings)
      : json_(json), settings_(settings) {}

  void read(const Setting& setting) {
    if (is_left_out_of_traces(setting)) return;
    name_ = name_in_trace(setting);
    setting_ = &setting;
    if (json_.has(name_)) std::visit(*this, setting.place);
  }

  void operator()(bool* place) const { *place = json_.flag(name_); }
  void operator()(int64_t* place) const {
    constexpr int64_t kMost = int64_t{1} << 40;
    const int64_t most = name_ == "num_ns_steps" ? kNewtonSchulzStepsMax : kMost;
    *place = json_.whole(name_, setting_->range == SettingRange::AtLeastOne ? 1 : 0, most);
  }
  void operator()(double* place) const {
    std::vector<std::string_view> shared;
    for (const Setting& other : settings_) {
      if (!other.field.empty() && other.field == setting_->field) shared.push_back(other.name);
    }
    if (shared.size() > 1) {
      const auto values = json_.averagings(name_, shared.size());
      const auto at = std::ranges::find(shared, setting_->name) - shared.begin();
      *place = values[static_cast<size_t>(at)];
    } else if (setting_->range == SettingRange::Averaging) {
      *place = json_.averaging(name_);
    } else {
      *place = setting_->range == SettingRange::AtLeastZero ? json_.at_least_zero(name_)
                                                            : json_.number(name_);
    }
  }
  void operator()(std::optional<bool>* place) const {
    if (!json_.any(name_).is_null()) *place = json_.flag(name_);
  }
  void operator()(const SettingChoice& choice) const {
    const std::string text = json_.text(name_);
    const auto found = std::ranges::find(choice.names, text);
    if (found == choice.names.end()) {
      json_.refuse_unsupported(name_, "'" + ckpt::escaped(text) + "' is not supported");
    }
    *choice.value = static_cast<uint8_t>(found - choice.names.begin());
  }
  void operator()(const void* /*place*/) const {}  // lists are ours

 private:
  const JsonFields& json_;
  const std::vector<Setting>& settings_;
  const Setting* setting_ = nullptr;
  std::string name_;
};

}  // namespace

bool is_left_out_of_traces(const Setting& setting) {
  constexpr std::string_view kOurs[] = {"era", "scales_twice", "custom_coefficients", "qkv_split",
                                        "schedule_dict"};
  return std::ranges::find(kOurs, setting.name) != std::end(kOurs);
}

std::string name_in_trace(const Setting& setting) {
  const bool is_number = std::holds_alternative<double*>(setting.place);
  return std::string(setting.field.empty() || !is_number ? setting.name : setting.field);
}

const RuleDescription* row_of_trace(std::string_view class_name) {
  for (const RuleDescription* const row : rule_table()) {
    if (!row->trace.empty() && row->trace == class_name) return row;
  }
  return nullptr;
}

RuleConfig rule_from_json(const RuleDescription& row, const JsonFields& json,
                          EmergingOptimizers era) {
  RuleConfig rule = row.defaults();
  const std::vector<Setting> settings = settings_of(rule);
  SettingReader reader(json, settings);
  for (const Setting& setting : settings) {
    reader.read(setting);
    if (setting.name != "era") continue;
    *std::get<SettingChoice>(setting.place).value = static_cast<uint8_t>(era);
  }
  if (row.check != nullptr) row.check(rule);
  return rule;
}

}  // namespace optim
