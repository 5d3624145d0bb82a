#pragma once

#include <string>

#include <training/opened_training.h>
#include <training/training_state.h>

namespace optim {

// Megatron's issue 5077 (verify/bucket_shift.h) where masters are remainders, which prove no place:
// what it displaces in a buffer ends in as many zeros as it was moved by, master and moments alike.
// The name of a parameter that ends so; empty where none does, and nothing can have been displaced.
// Reads a few elements.
std::string may_be_displaced(const TrainingState& state, const OpenedTraining& source);

// Of it, for people.
std::string text_of_displaced(const std::string& param);

}  // namespace optim
