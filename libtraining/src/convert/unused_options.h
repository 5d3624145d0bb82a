#pragma once

#include <training/convert.h>

namespace optim {

// Throws InvalidArgument for options about the form of optimizer state, where `what` is written,
// which has none.
void require_form_of_optimizer(const ConvertOptions& options, const char* what);

// The same of a model of Megatron's without its optimizer, which eras file in different places.
void require_layout_alone(const ConvertOptions& options);

}  // namespace optim
