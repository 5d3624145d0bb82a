#pragma once

#include <string>
#include <string_view>

#include <optim/rule_table.h>

#include "json_fields.h"

namespace optim {

// The row whose `trace` a class is; null: none.
const RuleDescription* row_of_trace(std::string_view class_name);

// What a trace does not say: which release computed it, and what only our rules have.
bool is_left_out_of_traces(const Setting& setting);
// The setting's own name, or that of the field of groups that holds its number.
std::string name_in_trace(const Setting& setting);

// The settings that a trace's "config" gives by the names of the row's settings, those that share a
// field of groups (betas) as a list; the constructor's defaults for what is left out. Throws
// Corrupt and Unsupported, with the field.
RuleConfig rule_from_json(const RuleDescription& row, const JsonFields& json,
                          EmergingOptimizers era);

}  // namespace optim
