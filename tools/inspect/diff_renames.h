#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ckpt/diff.h>
#include <training/names_in_common.h>

namespace tools::inspect {

// Names that start with FROM start with TO, by the first FROM=TO that fits, on both sides. Returns
// the names that tensors had before. Throws NotFound where no name starts with a FROM.
std::set<std::string, std::less<>> rename(optim::NamedPair& named,
                                          const std::vector<std::string>& renames);

// Where no tensor is on both sides and all would be without a front that one side's names have: the
// --rename that takes it away, as a sentence.
std::optional<std::string> rename_that_helps(const ckpt::Differences& differences);

}  // namespace tools::inspect
