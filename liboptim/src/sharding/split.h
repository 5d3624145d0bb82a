#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/box.h>

// How tensor parallelism cuts one tensor. Pure numbers.
namespace optim {

// A tensor is cut along one dimension, section by section: each section into as many contiguous
// blocks of one size as there are ranks. A rank's tensor is its blocks one behind the other.
// One section: a fused qkv weight (query groups are contiguous, also where there are fewer of them
// than ranks), row-parallel weights, the vocabulary. Two equal ones: linear_fc1 of a gated linear
// unit, the gate's rows and the up-projection's.
struct Split {
  size_t dim = 0;
  std::vector<uint64_t> sections;  // their sizes, which add up to the dimension's
};

Split one_section(size_t dim, uint64_t size);
Split two_halves(size_t dim, uint64_t size);  // of an even size; throws Error(InvalidArgument)

// One of `count` tensor parallel (or expert tensor parallel) ranks.
struct TensorRank {
  uint32_t index = 0, count = 1;
};

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
