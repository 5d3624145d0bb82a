#pragma once

#include <string_view>

#include <ckpt/target.h>

#include "targets/plain_state.h"

namespace ckpt {

// Throws Unsupported where an entry is, or has in it, what one rank holds of a tensor (TensorPart):
// under the tensor's name, in a format that cannot say so, it would be taken for the whole.
// `target`: what the result is called.
void refuse_parts(const PlainState& state, const Checkpoint& source, std::string_view target);

// Throws Unsupported where a target holds nothing. To be called where the source holds something.
void refuse_empty(const Target& target, std::string_view called);

}  // namespace ckpt
