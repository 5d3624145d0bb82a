#pragma once

#include <string>

#include <ckpt/error.h>
#include <ckpt/limits.h>
#include <ckpt/value_tree.h>

#include "base/byte_reader.h"

namespace ckpt {
namespace pickle {

// Reads one pickle (protocol 0 to 5) from the reader's cursor up to and including STOP, and leaves
// the cursor behind it. Builds inert values and calls nothing; no recursion, no allocation beyond
// the bytes that are there. Throws Error(Corrupt) at the offset of the opcode that makes no sense.
ValueTree read(ByteReader& reader, const Limits& limits = {});

// Writes the tree as one pickle. Protocol 2 is what torch.save uses, 4 what .metadata has.
// What was shared is shared again, dictionaries keep their order, objects their callable,
// arguments, elements, items and state. No recursion. Throws Error(Unsupported) for what the
// protocol cannot say (a tuple that contains itself, a class name with a dot or a line break in
// protocol 2).
std::string write(const ValueTree& tree, int protocol);

}  // namespace pickle

// pickle::read() of bytes that end with their file: a pickle that goes on behind them was cut off,
// or says that it is longer than it is.
inline ValueTree read_whole_pickle(ByteReader& reader, const Limits& limits) {
  const uint64_t file_bytes = reader.file_offset_bytes() + reader.left_bytes();
  try {
    return pickle::read(reader, limits);
  } catch (const Error& error) {
    const bool has_no_end = reader.at_end() && error.problem() == "the pickle ends without STOP";
    if (error.code() != ErrorCode::Corrupt || (!reader.ran_out() && !has_no_end)) throw;
    throw Error(ErrorCode::Corrupt, error.where(),
                error.problem() + ": " + truncated_text(file_bytes), error.hint())
        .mark_incomplete();
  }
}

}  // namespace ckpt
