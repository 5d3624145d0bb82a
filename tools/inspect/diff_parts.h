#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/diff.h>
#include <training/diff_summary.h>
#include <training/names_in_common.h>
#include <training/opened_training.h>

namespace tools::inspect {

// Names that start with FROM start with TO, by the first FROM=TO that fits, on both sides. Returns
// the names that tensors had before. Throws NotFound where no name starts with a FROM.
std::set<std::string, std::less<>> rename(optim::NamedPair& named,
                                          const std::vector<std::string>& renames);

// Where no tensor is on both sides and all would be without a front that one side's names have: the
// --rename that takes it away, as a sentence.
std::optional<std::string> rename_that_helps(const ckpt::Differences& differences);

// The type of a mapping's key as Python calls it.
std::string_view python_type(ckpt::Kind key);

// Whether the maxima and norms of a difference are of any element.
inline bool has_finite(const ckpt::ValueDifference& value) {
  return value.nonfinite_count < value.different_count;
}

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
