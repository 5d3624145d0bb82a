#pragma once

#include <string>
#include <vector>

#include <training/convert.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

// A run's arguments, where a conversion lays parameters out anew: for other sizes, or in another
// format.
namespace optim {

// Throws Error(Unsupported) for an argument whose layout is not understood, and under
// options.base.strict for one that is not in the table of arguments. What is to be told of such
// arguments, as ConvertReport::not_proven; empty: nothing.
std::vector<std::string> check_arguments(const FiledState& view, const OpenedTraining& source,
                                         const ConvertOptions& options);

}  // namespace optim
