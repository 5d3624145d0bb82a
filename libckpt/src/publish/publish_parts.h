#pragma once

#include "publish/piece_writer.h"

namespace ckpt {

// Completes a staging folder in which all payload lies, and puts it in the destination's place:
// files that nobody planned go, links and what is last come, and are synced. `recorded`: what the
// parts say was written. Throws IoFailure, and changes no destination, where it is not there.
void publish_parts(const WriteAttempt& attempt, PieceWriter& writer,
                   const std::vector<FinishedPiece>& recorded);

}  // namespace ckpt
