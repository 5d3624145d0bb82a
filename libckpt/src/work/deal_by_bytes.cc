#include "work/deal_by_bytes.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <string>

#include <ckpt/error.h>

namespace ckpt {

std::vector<uint32_t> deal_by_bytes(std::span<const uint64_t> piece_bytes, uint32_t process_count) {
  std::vector<uint32_t> by_size(piece_bytes.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::ranges::stable_sort(by_size, std::ranges::greater(),
                           [&](uint32_t piece) { return piece_bytes[piece]; });
  struct Process {
    uint64_t count_bytes;
    uint32_t rank;
    auto operator<=>(const Process&) const = default;
  };
  std::priority_queue<Process, std::vector<Process>, std::greater<>> least;
  for (uint32_t rank = 0; rank < process_count; ++rank) least.push({0, rank});
  std::vector<uint32_t> owner(piece_bytes.size());
  for (const uint32_t piece : by_size) {
    Process process = least.top();
    least.pop();
    owner[piece] = process.rank;
    process.count_bytes += piece_bytes[piece];
    least.push(process);
  }
  return owner;
}

void check_share(const Share& share) {
  if (share.rank < share.world_size && share.world_size <= kWorldSizeMax) return;
  throw Error(ErrorCode::InvalidArgument, {},
              "rank " + std::to_string(share.rank) + " is not below the number of processes, " +
                  std::to_string(share.world_size));
}

}  // namespace ckpt
