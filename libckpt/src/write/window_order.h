#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/plan.h>

#include "write/shared_reads.h"
#include "write/window_map.h"

namespace ckpt {

// In which order windows are composed, by index into the map: those of a file in their own, so that
// what is waited for has begun; those of files that share reads side by side. Pure.
std::vector<uint32_t> order_windows(const Target& target, const Plan& plan,
                                    const SharedReads& shared, const WindowMap& windows);

}  // namespace ckpt
