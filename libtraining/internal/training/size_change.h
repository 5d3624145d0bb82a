#pragma once

#include <cstdint>
#include <optional>
#include <string>

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
// come or go by an args.vocab_size that the stored rows contradict (contradicted_vocabulary()).
uint64_t target_vocabulary(const TrainingState& source, const RunGrid& grid,
                           const SizeChange& change);

// What is wrong with args.vocab_size: "is 64, but ...". Megatron pads to less than a multiple of
// make_vocab_size_divisible_by x the tensor parallel size. More padding than that is what the size
// of another vocabulary leaves, unless the rows are those of a larger tensor parallel size that the
// model can have begun with: a run that is continued from args keeps padded_vocab_size. nullopt:
// nothing is, or one of the two is not known.
std::optional<std::string> contradicted_vocabulary(const TrainingState& state);

// Rows of tokens among the stored ones. Megatron's NullTokenizer has one more than vocab_size: the
// end of a document.
uint64_t token_count(const ModelFacts& facts, uint64_t stored);

}  // namespace optim
