#include "common/table.h"

#include <common/text.h>

#include <algorithm>
#include <ostream>

namespace tools {
namespace {

std::string aligned(const Console& console, const Cell& cell, Align align, size_t width) {
  const std::string padding(width - std::min(width, display_width(cell.text)), ' ');
  const std::string text = console.paint(cell.paint, cell.text);
  return align == Align::Right ? padding + text : text + padding;
}

}  // namespace

std::vector<size_t> Table::widths() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(display_width(column.title));
  for (const auto* rows : {&rows_, &hidden_}) {
    for (const auto& row : *rows) {
      for (size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], display_width(row[i].text));
      }
    }
  }
  return widths;
}

void Table::print(Console& console, const std::string& indent) const {
  const std::vector<size_t> widths = this->widths();
  const auto print_row = [&](const std::vector<Cell>& row) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i != 0) line += "  ";
      line += aligned(console, row[i], columns_[i].align, widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    console.out() << line << '\n';
  };
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.push_back({column.title, Paint::Dim});
  const bool has_titles = std::any_of(columns_.begin(), columns_.end(),
                                      [](const Column& column) { return !column.title.empty(); });
  if (has_titles && shows_titles_ && !rows_.empty()) print_row(titles);
  for (const auto& row : rows_) print_row(row);
}

}  // namespace tools
