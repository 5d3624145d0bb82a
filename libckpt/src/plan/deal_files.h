#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/plan.h>

namespace ckpt {

// Which process writes which file, by index into Plan::files: the largest files first, each to the
// process that has the fewest bytes so far. Pure: the same on every process.
std::vector<uint32_t> deal_files(const Plan& plan, uint32_t process_count);

}  // namespace ckpt
