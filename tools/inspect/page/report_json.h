#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Columns of the table of tensors in docs/schema/report.json: plain lists, or, of many tensors,
// texts of printable characters that a page can hold (docs/report.md has the code).
enum class ColumnForm : uint8_t { Plain, Packed };
// Above it columns are packed.
inline constexpr size_t kPlainRowsMax = 10'000;
inline ColumnForm form_of(size_t row_count) {
  return row_count > kPlainRowsMax ? ColumnForm::Packed : ColumnForm::Plain;
}

// Five significant digits: the shortest text of a number that a person reads.
double rounded(double number);

// null: there is none.
nlohmann::json number_column(const std::vector<std::optional<double>>& numbers, ColumnForm form);
nlohmann::json count_column(const std::vector<uint64_t>& counts, ColumnForm form);
// {"rows": [...], "counts": [...]} of those that are not 0.
nlohmann::json sparse_column(const std::vector<uint64_t>& counts);
// `texts`: steps joined by dots. Neighbours have much in common.
nlohmann::json name_column(const std::vector<std::string>& texts, ColumnForm form);
nlohmann::json bars_column(const std::vector<optim::HistogramBars>& bars, ColumnForm form);

}  // namespace tools::inspect
