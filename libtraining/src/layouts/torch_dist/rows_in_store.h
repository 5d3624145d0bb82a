#pragma once

#include <cstdint>
#include <vector>

#include <training/training_state.h>

#include "parallel/split.h"

// Rows of gate and up that alternate in blocks (grid/glu_rows.h), in a torch_dist folder. Megatron
// stores them as it stores halves: the first half of what each rank has, rank after rank, then the
// second halves. Of two ranks or more that is another order than that of the ranks' rows, and
// Megatron at another size takes it for the rows of other ranks.
namespace optim {

// The tensor with the rows of each rank one behind the other, of one stored by so many ranks; as
// it is, where the ranks have no halves of one size.
TensorRef rows_of_ranks(const TensorRef& stored, uint32_t ranks);

// What a rank has of such a tensor: boxes of the rows in the order of the ranks, and where they lie
// in the store.
struct StoredBoxes {
  std::vector<ckpt::Box> of_ranks, in_store;
};
StoredBoxes stored_boxes(const ckpt::Extents& shape, TensorRank rank);

}  // namespace optim
