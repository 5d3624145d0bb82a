#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ckpt/box.h>
#include <training/training_state.h>

// A weight and its master, box by box, whoever cut them where: a chunk of both, where ranks cut
// both alike; else what several chunks of the one and of the other make up together, as the two
// halves of a gated weight do, and the ranges of a flat buffer that two ranks share.
namespace optim {

struct RunOfBox {
  const ckpt::Chunk* chunk = nullptr;
  uint64_t first = 0;  // of the box's elements, row-major, of which the chunk is one run
};

struct ComparedBox {
  ckpt::Box box;
  std::vector<RunOfBox> weights, masters;  // each without a gap
};

// Disjoint, in their order. nullopt where some chunk is not a run of the box it is in. `param` has
// a master.
std::optional<std::vector<ComparedBox>> compared_boxes(const TrainedParam& param);

// One number for the sums of several boxes, whose order counts.
uint64_t joined_sum(uint64_t sum, uint64_t of_box);

}  // namespace optim
