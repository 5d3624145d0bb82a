#include "parallel/split.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ckpt/error.h>

#include "sharding/refuse.h"

namespace optim {
namespace {

void check(const ckpt::Extents& shape, const Split& split, uint32_t rank_count) {
  if (split.dim >= shape.size()) {
    refuse("a tensor of " + std::to_string(shape.size()) + " dimensions cannot be split along " +
           "dimension " + std::to_string(split.dim));
  }
  const std::string dimension = "dimension " + std::to_string(split.dim);
  uint64_t left = shape[split.dim];
  bool adds_up = true;
  for (const uint64_t section : split.sections) {
    if (rank_count == 0 || section % rank_count != 0) {
      refuse(dimension + " has " + std::to_string(section) + " rows to split, which is not a " +
             "multiple of " + std::to_string(rank_count) + " tensor parallel ranks");
    }
    adds_up = adds_up && section <= left;
    left -= std::min(section, left);
  }
  if (!adds_up || left != 0) {
    refuse("the sections of " + dimension + " do not add up to its size, " +
           std::to_string(shape[split.dim]));
  }
}

}  // namespace

Split one_section(size_t dim, uint64_t size) { return {dim, {size}}; }

Split two_halves(size_t dim, uint64_t size) {
  if (size % 2 != 0) refuse(std::to_string(size) + " rows cannot be split into two halves");
  return {dim, {size / 2, size / 2}};
}

std::vector<ckpt::Box> blocks_of(const ckpt::Extents& shape, const Split& split, TensorRank rank) {
  check(shape, split, rank.count);
  std::vector<ckpt::Box> blocks;
  uint64_t section_begin = 0;
  for (const uint64_t section : split.sections) {
    const uint64_t size = section / rank.count;
    ckpt::Box block = ckpt::whole(shape);
    block.offsets[split.dim] = section_begin + rank.index * size;
    block.sizes[split.dim] = size;
    blocks.push_back(std::move(block));
    section_begin += section;
  }
  return blocks;
}

std::vector<ckpt::Box> boxes_of(const ckpt::Extents& shape, const Split& split, TensorRank rank) {
  std::vector<ckpt::Box> boxes;
  for (ckpt::Box& block : blocks_of(shape, split, rank)) {
    ckpt::Box* const last = boxes.empty() ? nullptr : &boxes.back();
    const size_t dim = split.dim;
    if (last != nullptr && last->offsets[dim] + last->sizes[dim] == block.offsets[dim]) {
      last->sizes[dim] += block.sizes[dim];
    } else {
      boxes.push_back(std::move(block));
    }
  }
  return boxes;
}

ckpt::Extents shape_on_rank(const ckpt::Extents& shape, const Split& split, uint32_t rank_count) {
  check(shape, split, rank_count);
  ckpt::Extents local = shape;
  local[split.dim] /= rank_count;
  return local;
}

uint64_t padded_vocabulary(uint64_t true_size, uint64_t divisible_by, uint32_t tensor_parallel) {
  if (true_size == 0 || divisible_by == 0 || tensor_parallel == 0) {
    refuse("a vocabulary needs a size, a divisor and a tensor parallel size above 0");
  }
  constexpr uint64_t kRowsMax = uint64_t{1} << 62;
  if (true_size > kRowsMax || divisible_by > kRowsMax / tensor_parallel) {
    refuse("the padded vocabulary would have more than 2^62 rows");
  }
  const uint64_t multiple = divisible_by * tensor_parallel;
  return (true_size + multiple - 1) / multiple * multiple;
}

}  // namespace optim
