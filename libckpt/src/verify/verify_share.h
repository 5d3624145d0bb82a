#pragma once

#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/plan.h>

#include "verify/verify_files.h"

namespace ckpt {

// Gives this share its pieces of the files: all shares together have each byte once, and of a file
// without bytes the empty piece. Pure. Throws InvalidArgument for a share that is none.
void deal_files(std::vector<VerifiedFile>& files, const Catalog& catalog, const Share& share);

}  // namespace ckpt
