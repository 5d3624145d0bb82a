#include "parallel/rank_grid.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sharding/refuse.h"

namespace optim {
namespace {

constexpr std::array<std::string_view, 5> kAxisNames = {"tp", "cp", "ep", "dp", "pp"};

std::vector<std::string_view> parts_of(std::string_view order) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t dash = order.find('-');
    parts.push_back(order.substr(0, dash));
    if (dash == order.npos) return parts;
    order.remove_prefix(dash + 1);
  }
}

// Indices into kAxisNames. Names that are left out come last, as in the reference.
std::vector<size_t> parse_order(std::string_view order) {
  std::vector<size_t> axes;
  for (const std::string_view part : parts_of(order)) {
    const size_t axis =
        static_cast<size_t>(std::ranges::find(kAxisNames, part) - kAxisNames.begin());
    if (axis == kAxisNames.size() || std::ranges::find(axes, axis) != axes.end()) {
      refuse("the rank order '" + std::string(order) +
             "' is not valid; expected tp, cp, ep, dp and pp, each at most once, joined by '-'");
    }
    axes.push_back(axis);
  }
  return axes;
}

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

RankGrid::RankGrid(const ParallelSizes& sizes, std::string_view order) {
  rank_count_ = sizes.world();
  dense_ = {sizes.tensor_parallel, sizes.context_parallel, 1, sizes.data_parallel,
            sizes.pipeline_parallel};
  experts_ = {sizes.expert_tensor_parallel, 1, sizes.expert_parallel, sizes.expt_dp(),
              sizes.pipeline_parallel};
  std::vector<size_t> axes = parse_order(order);
  for (size_t axis = 0; axis < kAxisCount; ++axis) {
    if (std::ranges::find(axes, axis) != axes.end()) continue;
    if (dense_[axis] != 1 || experts_[axis] != 1) {
      refuse("the rank order '" + std::string(order) + "' does not name '" +
             std::string(kAxisNames[axis]) + "', whose size is above 1");
    }
    axes.push_back(axis);
  }
  for (size_t i = 0; i < kAxisCount; ++i) order_[i] = static_cast<Axis>(axes[i]);
  for (uint64_t rank = 0; rank < rank_count_ && order_.back() != Pp; ++rank) {
    if (split(rank, dense_)[Pp] == split(rank, experts_)[Pp]) continue;
    refuse("with the rank order '" + std::string(order) + "', rank " + std::to_string(rank) +
           " would be in different pipeline stages for dense and for expert parameters");
  }
}

RankGrid::PerAxis RankGrid::split(uint64_t world_rank, const PerAxis& sizes) const {
  PerAxis place = {};
  for (const Axis axis : order_) {
    place[axis] = static_cast<uint32_t>(world_rank % sizes[axis]);
    world_rank /= sizes[axis];
  }
  return place;
}

// The axes of a group vary in the grid's order.
uint32_t RankGrid::rank_within(const PerAxis& place, const PerAxis& sizes,
                               std::initializer_list<Axis> group) const {
  uint32_t rank = 0, stride = 1;
  for (const Axis axis : order_) {
    if (std::ranges::find(group, axis) == group.end()) continue;
    rank += place[axis] * stride;
    stride *= sizes[axis];
  }
  return rank;
}

RankCoordinates RankGrid::at(uint64_t world_rank) const {
  const PerAxis dense = split(world_rank, dense_), experts = split(world_rank, experts_);
  return {.tp = dense[Tp],
          .cp = dense[Cp],
          .dp = dense[Dp],
          .pp = dense[Pp],
          .etp = experts[Tp],
          .ep = experts[Ep],
          .edp = experts[Dp],
          .dp_cp = rank_within(dense, dense_, {Dp, Cp}),
          .model_copy = rank_within(dense, dense_, {Tp, Pp}),
          .expert_copy = rank_within(experts, experts_, {Tp, Ep, Pp})};
}

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
