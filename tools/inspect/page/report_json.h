#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <ckpt/diff.h>
#include <training/opened_training.h>
#include <training/report_page.h>

#include "inspect/page_text.h"

namespace tools::inspect {

// The document of docs/schema/report.json.
nlohmann::json report_to_json(const Page& page, const optim::ReportPage& report);

// What a document has as "comparison". `row_count`: of the report of A.
struct ComparedPage {
  const optim::Comparison& comparison;
  const optim::OpenedTraining& b;
  const ckpt::DiffOptions& options;
  size_t row_count = 0;
};
nlohmann::json comparison_to_json(const ComparedPage& page);

// One HTML file that loads nothing, around a JSON document of docs/schema/report.json. No text in
// the document can end the element in which it stands.
std::string report_html(std::string_view json);

}  // namespace tools::inspect
