#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include <ckpt/diff.h>
#include <training/diff_summary.h>
#include <training/opened_training.h>

namespace tools::inspect {

// The type of a mapping's key as Python calls it.
std::string_view python_type(ckpt::Kind key);

// The first `limit` differences.
std::pair<std::span<const ckpt::TensorDifference>, std::span<const ckpt::ObjectDifference>>
first_of(const ckpt::Differences& differences, size_t limit);

nlohmann::json side_json(const optim::OpenedTraining& checkpoint);
nlohmann::json object_difference_json(const ckpt::ObjectDifference& object);
// A document with the verdict and the counts; below, what differs.
nlohmann::json verdict_json(const ckpt::Differences& differences);
void add_lists(nlohmann::json& document, const ckpt::Differences& differences, size_t limit);
void add_modules(nlohmann::json& document, const optim::DiffSummary& summary, size_t limit);

}  // namespace tools::inspect
