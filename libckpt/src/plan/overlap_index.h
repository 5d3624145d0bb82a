#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/box.h>

namespace ckpt {

struct Overlap {
  uint32_t box = 0;  // index into the boxes that were indexed
  Box part;          // what it shares with the query
};

// Finds which of many boxes a box meets, without testing all of them: boxes are sorted by where
// they start in the first dimension, in which layers are stacked and most tensors are cut.
class OverlapIndex {
 public:
  explicit OverlapIndex(std::vector<Box> boxes);

  // In the order of the boxes as they were given. Boxes of another number of dimensions meet
  // nothing.
  std::vector<Overlap> find(const Box& query) const;

 private:
  std::vector<Box> boxes_;
  std::vector<uint32_t> by_start_;  // indices of boxes, sorted by offsets[0]
  uint64_t longest_ = 0;            // largest sizes[0]
};

}  // namespace ckpt
