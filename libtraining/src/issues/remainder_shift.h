#pragma once

#include <string>

#include <training/filed_state.h>
#include <training/opened_training.h>

namespace optim {

// bucket_windows.h where masters are remainders, which prove no place: what is displaced in a
// buffer ends in as many zeros as it was moved by, master and moments alike. The name of a
// parameter that ends so; empty where none does, and nothing can have been displaced. Reads a few
// elements.
std::string may_be_displaced(const FiledState& state, const OpenedTraining& source);

}  // namespace optim
