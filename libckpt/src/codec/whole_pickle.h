#pragma once

#include <ckpt/error.h>
#include <ckpt/limits.h>
#include <ckpt/value_tree.h>

#include "base/byte_reader.h"
#include "base/truncated.h"
#include "codec/pickle_reader.h"

namespace ckpt {

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
