#pragma once

#include <training/convert.h>

#include "convert/write_named.h"
#include "issues/issue.h"

namespace optim {

// A training state on its way to the target that options ask for. `repaired.payloads`: what its
// chunks lie in; null: the source's files.
ConvertReport convert_state(Job job, const ConvertOptions& options, RepairedState repaired);

}  // namespace optim
