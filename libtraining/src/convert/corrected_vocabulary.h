#pragma once

#include <training/size_change.h>
#include <training/training_state.h>

namespace optim {

// Puts the size that --vocab-size gives in the place of an args.vocab_size that the stored rows
// contradict, and lists it: else the result would have what its source was refused for.
void correct_vocabulary(const SizeChange& change, TrainingState& state);

}  // namespace optim
