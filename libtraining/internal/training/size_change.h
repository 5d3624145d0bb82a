#pragma once

#include <cstdint>

#include <training/layer_wise_checkpoint.h>
#include <training/model_facts.h>
#include <training/training_state.h>

namespace optim {

// Pure. Throws Error(InvalidArgument), naming the number and the option, for sizes of 0 and sizes
// that do not divide what they have to.
RunGrid target_grid(const TrainingState& source, const SizeChange& change);

// Rows of embedding and output layer in a grid: the true vocabulary, padded to a multiple of
// make_vocab_size_divisible_by x the tensor parallel size. Where the true size is not known, the
// stored one, which the tensor parallel size must divide. 0: the model has no vocabulary.
// Throws Error(InvalidArgument) with the option (--vocab-size), and Error(Corrupt) where rows would
// come or go by an args.vocab_size that the stored rows contradict (grid/vocabulary.h).
uint64_t target_vocabulary(const TrainingState& source, const RunGrid& grid,
                           const SizeChange& change);

}  // namespace optim
