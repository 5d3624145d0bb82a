#pragma once

#include <ckpt/checkpoint.h>
#include <common/console.h>

#include "inspect/overview.h"

namespace tools::inspect {

// docs/schema/summary.json.
void print_summary_as_json(Console& console, const ckpt::Checkpoint& checkpoint,
                           const Overview& overview);

}  // namespace tools::inspect
