#include "execute/window_map.h"

#include <algorithm>

namespace ckpt {

WindowMap::WindowMap(const Plan& plan, const std::vector<bool>& chosen, uint64_t window_bytes)
    : plan_(plan), window_bytes_(window_bytes), first_window_{0} {
  first_window_.reserve(plan.files.size() + 1);
  for (size_t f = 0; f < plan.files.size(); ++f) {
    const bool is_chosen = chosen.empty() || chosen[f];
    const uint64_t windows = (plan.files[f].count_bytes + window_bytes - 1) / window_bytes;
    first_window_.push_back(first_window_.back() + (is_chosen ? std::max<size_t>(1, windows) : 0));
  }
}

Window WindowMap::window(size_t index) const {
  const auto next_file = std::ranges::upper_bound(first_window_, index);
  const auto file = static_cast<uint32_t>(next_file - first_window_.begin() - 1);
  const uint64_t offset_bytes = (index - first_window_[file]) * window_bytes_;
  const uint64_t left_bytes = plan_.files[file].count_bytes - offset_bytes;
  return {file, {offset_bytes, std::min(window_bytes_, left_bytes)}};
}

size_t WindowMap::count_over(ByteRange bytes) const {
  if (bytes.count_bytes == 0) return 0;
  return (bytes.end_bytes() - 1) / window_bytes_ - bytes.offset_bytes / window_bytes_ + 1;
}

}  // namespace ckpt
