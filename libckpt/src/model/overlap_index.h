#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/plan.h>

namespace ckpt {

struct Overlap {
  uint32_t box = 0;  // index into the boxes that were indexed
  Box part;          // what it shares with the query
};

// Finds which of many boxes a box meets, without testing all of them: a tree of bounding boxes,
// halved in the dimension that is cut most often. n log n to build; in a tiling of any number of
// dimensions a query costs log n and what it finds.
class OverlapIndex {
 public:
  // Boxes without elements, and those of another number of dimensions than the first, meet nothing.
  explicit OverlapIndex(std::span<const Chunk> chunks);
  explicit OverlapIndex(std::span<const CopyOp> copies);  // of what they copy

  // In the order of the boxes as they were given.
  std::vector<Overlap> find(const Box& query) const;

 private:
  using BoxAt = std::function<const Box&(uint32_t)>;
  struct Node {
    uint32_t begin = 0, end = 0;  // positions
    uint32_t right = 0;           // the second half's node; the first half's follows; 0: a leaf
  };

  void build(size_t count, const BoxAt& box_at);
  void split(uint32_t begin, uint32_t end, const BoxAt& box_at);
  size_t widest_dim(uint32_t begin, uint32_t end, const BoxAt& box_at) const;
  void store_ranges(uint32_t begin, uint32_t end, const BoxAt& box_at);
  void bound(size_t node);
  bool meets(const uint64_t* range, const Box& query) const;
  Overlap overlap_at(uint32_t position, const Box& query) const;

  size_t dims_ = 0;
  std::vector<uint32_t> order_;   // [position] index of the box
  std::vector<uint64_t> ranges_;  // [position][dim] where the box starts and ends
  std::vector<Node> nodes_;
  std::vector<uint64_t> bounds_;  // [node][dim] as ranges_, of all boxes of the node
};

}  // namespace ckpt
