#pragma once

#include <vector>

#include <optim/param_group.h>
#include <optim/process_groups.h>

namespace optim {

// The keys of all ranks' groups, in rank order: with them every rank makes the same groups in the
// same order, those of which it has no parameter included. Collective. Throws
// Error(InvalidArgument) for a rank that runs another version.
std::vector<GroupKey> gather_group_keys(const ProcessGroupPtr& world,
                                        const std::vector<GroupKey>& mine);

}  // namespace optim
