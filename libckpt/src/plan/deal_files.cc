#include "plan/deal_files.h"

#include <algorithm>
#include <numeric>
#include <queue>

namespace ckpt {

std::vector<uint32_t> deal_files(const Plan& plan, uint32_t process_count) {
  std::vector<uint32_t> by_size(plan.files.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::ranges::stable_sort(by_size, std::ranges::greater(),
                           [&](uint32_t file) { return plan.files[file].count_bytes; });
  struct Process {
    uint64_t count_bytes;
    uint32_t rank;
    auto operator<=>(const Process&) const = default;
  };
  std::priority_queue<Process, std::vector<Process>, std::greater<>> least;
  for (uint32_t rank = 0; rank < process_count; ++rank) least.push({0, rank});
  std::vector<uint32_t> owner(plan.files.size());
  for (const uint32_t file : by_size) {
    Process process = least.top();
    least.pop();
    owner[file] = process.rank;
    process.count_bytes += plan.files[file].count_bytes;
    least.push(process);
  }
  return owner;
}

}  // namespace ckpt
