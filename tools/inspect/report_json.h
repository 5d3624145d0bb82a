#pragma once

#include <ckpt/checkpoint.h>
#include <optim/report_page.h>
#include <nlohmann/json.hpp>

#include "inspect/page_text.h"

namespace tools::inspect {

// The document of docs/schema/report.json.
nlohmann::json report_to_json(const Page& page, const optim::ReportPage& report);

}  // namespace tools::inspect
