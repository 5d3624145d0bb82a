#pragma once

#include <optional>
#include <string>

#include <training/opened_training.h>

namespace optim {

// Why the weights of this run may be something else than their masters rounded to 16 bits: they
// were kept in fp8, or the optimizer kept masters in another form. nullopt where nothing says so.
std::optional<std::string> why_weights_may_differ(const OpenedTraining& checkpoint);

}  // namespace optim
