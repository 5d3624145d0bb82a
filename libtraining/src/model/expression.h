#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <ckpt/value.h>
#include <nlohmann/json.hpp>

namespace optim {

// What a name stands for; null: nothing.
using Lookup = std::function<nlohmann::json(const std::string& name)>;

// The value of an expression of a table of names or of model rules, which is one of Python's, too,
// and has the same value there: literals, names, calls of the functions that docs/huggingface.md
// lists, [], `in`, `not`, `and`, `or`, comparisons, + - * // % of whole numbers, `X if C else Y`.
// What does not decide is not computed. Throws Corrupt for a text that is none, Unsupported where
// its values do not fit.
nlohmann::json evaluate(std::string_view text, const Lookup& lookup);

// As Python's bool().
bool is_truthy(const nlohmann::json& value);

// Plain values; others, such as a type or a function, as what no expression compares with.
nlohmann::json json_of(const ckpt::Value& value);

}  // namespace optim
