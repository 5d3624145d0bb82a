#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ckpt/staging.h>

namespace ckpt {

inline constexpr uint32_t kWorldSizeMax = 1 << 20;
// Throws InvalidArgument unless rank < world_size <= kWorldSizeMax.
void check_share(const Share& share);

// Which process takes which piece of work, by index: the largest pieces first, each to the process
// that has the fewest bytes so far. Pure: the same on every process.
std::vector<uint32_t> deal_by_bytes(std::span<const uint64_t> piece_bytes, uint32_t process_count);

}  // namespace ckpt
