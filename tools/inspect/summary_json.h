#pragma once

#include <common/console.h>

#include "inspect/page_text.h"

namespace tools::inspect {

// docs/schema/summary.json.
void print_summary_as_json(Console& console, const Page& page);

}  // namespace tools::inspect
