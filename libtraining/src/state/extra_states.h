#pragma once

#include <ckpt/document.h>

namespace optim {

// Whether what a module keeps beside its parameters is more than None or an empty tensor, which
// TransformerEngine writes where it has no fp8 scales.
bool holds_bytes(const ckpt::Document& extra_state);

}  // namespace optim
