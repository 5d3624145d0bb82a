#pragma once

#include <nlohmann/json.hpp>

#include <optim/rule_config.h>

#include "json_fields.h"

// The "config" of a trace: the class of an optimizer and its settings, beside its rates.
namespace optim {

inline constexpr const char* kReplayedTraces =
    "step-replay check replays traces of SGD, Adam, AdamW, Lion, Muon, adaptive Muon and SOAP";

// `era`: of emerging_optimizers, which a trace does not say. Throws Corrupt and Unsupported, with
// the field.
RuleConfig rule_of_trace(const JsonFields& config, EmergingOptimizers era);

// What rule_of_trace() reads as the same rule. Throws Unsupported, with the rule's name, for one
// that no trace is of, and for settings that traces do not have.
nlohmann::json trace_config(const RuleConfig& rule);

}  // namespace optim
