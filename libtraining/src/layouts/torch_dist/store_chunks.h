#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/torch_dist_target.h>
#include <training/training_state.h>

#include "layouts/job/layer_wise_target.h"
#include "layouts/job/store_files.h"
#include "parallel/rank_grid.h"

// Tensors of a torch_dist folder: which chunks there are, and which rank writes each.
namespace optim {

// The chunks of model and optimizer, as the ranks of the target's grid store them: each owner its
// optimizer state, the model shared out so that ranks write equally much. A tensor of which nobody
// knows how tensor parallel ranks share it keeps the chunks that it has.
void add_store_chunks(const TargetJob& job, const HoldingRanks& ranks, ckpt::DistSpec& spec);

// Rows of gate and up that alternate in blocks (grid/glu_rows.h), in a torch_dist folder. Megatron
// stores them as it stores halves: the first half of what each rank has, rank after rank, then the
// second halves. Of two ranks or more that is another order than that of the ranks' rows, and
// Megatron at another size takes it for the rows of other ranks.
//
// The tensor with the rows of each rank one behind the other, of one stored by so many ranks; as
// it is, where the ranks have no halves of one size.
TensorRef rows_of_ranks(const TensorRef& stored, uint32_t ranks);
// The same of a parameter's weight, its master and the states of its shape.
void order_rows(uint32_t ranks, TrainedParam& param);

// What a rank has of such a tensor: boxes of the rows in the order of the ranks, and where they lie
// in the store.
struct StoredBoxes {
  std::vector<ckpt::Box> of_ranks, in_store;
};
StoredBoxes stored_boxes(const ckpt::Extents& shape, TensorRank rank);

}  // namespace optim
