#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <training/report_page.h>
#include <nlohmann/json.hpp>

// Columns of the table of tensors in docs/schema/report.json: plain lists, or, of many tensors,
// texts of printable characters that a page can hold (docs/report.md has the code).
namespace tools::inspect {

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
