#include "common/table.h"

#include <common/text.h>

#include <algorithm>
#include <ostream>

namespace tools {
namespace {

constexpr size_t kGap = 2;            // columns between two columns
constexpr size_t kShortenedMin = 10;  // a shortened text keeps what it can be told by

std::string aligned(const Console& console, const Cell& cell, Align align, size_t width) {
  const Screen& screen = console.screen();
  const std::string shown = shortened_in_middle(screen.shown(cell.text), width, screen.ellipsis());
  const std::string padding(width - std::min(width, display_width(shown)), ' ');
  const std::string text = console.paint(cell.paint, shown);
  return align == Align::Right ? padding + text : text + padding;
}

template <class Layout>
size_t total_width(const Layout& layout) {
  size_t total = layout.empty() ? 0 : kGap * (layout.size() - 1);
  for (const auto& column : layout) total += column.width;
  return total;
}

}  // namespace

Table::Layout Table::full_layout(const Screen& screen) const {
  Layout layout;
  for (const Column& column : columns_)
    layout.push_back({layout.size(), display_width(column.title)});
  for (const auto* rows : {&rows_, &hidden_}) {
    for (const auto& row : *rows) {
      for (size_t i = 0; i < row.size(); ++i) {
        layout[i].width = std::max(layout[i].width, display_width(screen.shown(row[i].text)));
      }
    }
  }
  return layout;
}

void Table::drop_columns(Layout& layout, size_t width_max) const {
  int last = 0;
  for (const Column& column : columns_) last = std::max(last, column.drop_order);
  for (int order = 1; order <= last && total_width(layout) > width_max; ++order) {
    std::erase_if(layout, [&](const ShownColumn& shown) {
      return columns_[shown.index].drop_order == order;
    });
  }
}

void Table::narrow(Layout& layout, size_t width_max) const {
  drop_columns(layout, width_max);
  const size_t first_width = layout.empty() ? 0 : layout[0].width;
  while (total_width(layout) > width_max) {
    ShownColumn* widest = nullptr;
    for (ShownColumn& shown : layout) {
      const size_t width_min = std::max(kShortenedMin, display_width(columns_[shown.index].title));
      if (!columns_[shown.index].can_shorten || shown.width <= width_min) continue;
      if (widest == nullptr || shown.width > widest->width) widest = &shown;
    }
    if (widest == nullptr) break;
    --widest->width;
  }
  // A terminal narrower than the rest: whole columns go, since half a number would be another one.
  while (layout.size() > 1 && total_width(layout) > width_max) layout.pop_back();
  if (layout.size() == 1) layout[0].width = std::min(first_width, width_max);
}

void Table::print(Console& console, const std::string& indent) const {
  const Screen& screen = console.screen();
  Layout layout = full_layout(screen);
  if (screen.width) narrow(layout, *screen.width - std::min(*screen.width, indent.size()));
  std::ostream& out = console.out();
  const auto print_row = [&](const std::vector<Cell>& row) {
    std::string line = indent;
    for (const ShownColumn& shown : layout) {
      if (shown.index >= row.size()) break;
      if (line.size() != indent.size()) line += std::string(kGap, ' ');
      line += aligned(console, row[shown.index], columns_[shown.index].align, shown.width);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  };
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.push_back({column.title, Paint::Dim});
  const bool has_titles = std::any_of(columns_.begin(), columns_.end(),
                                      [](const Column& column) { return !column.title.empty(); });
  if (has_titles && shows_titles_ && !rows_.empty()) print_row(titles);
  for (const auto& row : rows_) print_row(row);
}

}  // namespace tools
