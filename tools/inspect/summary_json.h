#pragma once

#include <string>

#include <common/console.h>

#include "inspect/page_text.h"

namespace tools::inspect {

// docs/schema/summary.json.
void print_summary_as_json(Console& console, const Page& page);
// The same of a folder that cannot be opened, because of what is missing.
void print_incomplete_as_json(Console& console, const std::string& path,
                              const std::string& problem);

}  // namespace tools::inspect
