#pragma once

#include <optional>
#include <string>

#include <training/training_state.h>

namespace optim {

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
