#pragma once

#include "publish/piece_writer.h"

namespace ckpt {

// Writes the share of options.share.rank, and its part record: what an earlier attempt has left
// finished and sound is kept. Throws what execute() and PieceWriter::verify() throw, AlreadyExists
// where what other parts have written is lost, Corrupt where the source has changed meanwhile.
void write_part(const WriteAttempt& attempt, PieceWriter& writer);

}  // namespace ckpt
