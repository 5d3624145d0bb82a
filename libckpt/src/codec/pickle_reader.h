#pragma once

#include <ckpt/limits.h>
#include <ckpt/value_tree.h>

#include "base/byte_reader.h"

namespace ckpt::pickle {

// Reads one pickle (protocol 0 to 5) from the reader's cursor up to and including STOP, and leaves
// the cursor behind it. Builds inert values and calls nothing; no recursion, no allocation beyond
// the bytes that are there. Throws Error(Corrupt) at the offset of the opcode that makes no sense.
ValueTree read(ByteReader& reader, const Limits& limits = {});

}  // namespace ckpt::pickle
