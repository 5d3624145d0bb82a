#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ckpt/plan.h>

namespace ckpt {

// A part of a target file that is composed in one buffer and written with one call.
struct Window {
  uint32_t file = 0;
  ByteRange bytes;  // in the file
};

// The files of a plan, one after the other, cut at multiples of the windows' length. An empty file
// has one empty window. What the files hold does not depend on the cuts. Immutable.
class WindowMap {
 public:
  // `chosen`: which files, by index; empty: all.
  WindowMap(const Plan& plan, const std::vector<bool>& chosen, uint64_t window_bytes);

  size_t count() const { return first_window_.back(); }
  size_t count_in(uint32_t file) const { return first_window_[file + 1] - first_window_[file]; }
  Window window(size_t index) const;
  // How many windows show some of these bytes of a file.
  size_t count_over(ByteRange bytes) const;

 private:
  const Plan& plan_;
  uint64_t window_bytes_;
  std::vector<size_t> first_window_;  // by file, and one for the end
};

}  // namespace ckpt
