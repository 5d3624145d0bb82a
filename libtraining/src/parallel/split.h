#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/box.h>
#include <training/model_facts.h>

// How tensor parallelism cuts one tensor. Pure numbers.
namespace optim {

Split one_section(size_t dim, uint64_t size);
Split two_halves(size_t dim, uint64_t size);  // of an even size; throws Error(InvalidArgument)

// One of `count` tensor parallel (or expert tensor parallel) ranks.
struct TensorRank {
  uint32_t index = 0, count = 1;
};

// The blocks of the whole tensor that a rank holds, one of each section, as torch_dist stores them.
// Throws as boxes_of does.
std::vector<ckpt::Box> blocks_of(const ckpt::Extents& shape, const Split& split, TensorRank rank);

// The boxes of the whole tensor that a rank holds, in the order in which they lie in its own
// tensor; neighbours are joined. Throws Error(InvalidArgument) where the sections are not the
// dimension's size or one of them is not a multiple of the rank count, with both numbers.
std::vector<ckpt::Box> boxes_of(const ckpt::Extents& shape, const Split& split, TensorRank rank);

// Shape of each rank's tensor. Throws as boxes_of does.
ckpt::Extents shape_on_rank(const ckpt::Extents& shape, const Split& split, uint32_t rank_count);

// Rows of an embedding or output layer as Megatron pads them: the smallest multiple of
// make_vocab_size_divisible_by * tensor_parallel that holds the vocabulary.
// Throws Error(InvalidArgument) for a divisor or size of 0 and above 2^63 rows.
uint64_t padded_vocabulary(uint64_t true_size, uint64_t divisible_by, uint32_t tensor_parallel);

}  // namespace optim
