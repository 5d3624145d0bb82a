#pragma once

#include <nlohmann/json.hpp>

#include <optim/rule_config.h>

namespace optim {

// A rule as the "config" of a trace, without its rates: what read_trace_header() reads as the same
// rule. Throws Unsupported, with the rule's name, for one that no trace is of, and for settings
// that traces do not have.
nlohmann::json trace_config(const RuleConfig& rule);

}  // namespace optim
