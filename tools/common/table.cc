#include "common/table.h"

#include <common/text.h>

#include <algorithm>
#include <map>
#include <ostream>

namespace tools {
namespace {

constexpr size_t kGap = 2;            // columns between two columns
constexpr size_t kShortenedMin = 10;  // a shortened text keeps what it can be told by

std::string aligned(const Console& console, const Cell& cell, Align align, size_t width) {
  const std::string_view ellipsis = console.screen().ellipsis();
  const size_t full_width = display_width(cell.text);
  const bool fits = full_width <= width;
  const std::string cut = fits ? "" : shortened_in_middle(cell.text, width, ellipsis);
  const std::string text = console.paint(cell.paint, fits ? cell.text : cut);
  const std::string padding(width - (fits ? full_width : display_width(cut)), ' ');
  return align == Align::Right ? padding + text : text + padding;
}

template <class Layout>
size_t total_width(const Layout& layout) {
  size_t total = layout.empty() ? 0 : kGap * (layout.size() - 1);
  for (const auto& column : layout) total += column.width;
  return total;
}

}  // namespace

Table::Layout Table::full_layout() const {
  Layout layout;
  for (const Column& column : columns_)
    layout.push_back({layout.size(), display_width(column.title)});
  for (const auto* rows : {&rows_, &hidden_}) {
    for (const auto& row : *rows) {
      for (size_t i = 0; i < row.size(); ++i) {
        layout[i].width = std::max(layout[i].width, display_width(row[i].text));
      }
    }
  }
  return layout;
}

// What the columns need, shortened as far as they are before one is dropped.
size_t Table::kept_width(const Layout& layout) const {
  size_t width = total_width(layout);
  for (const ShownColumn& shown : layout) {
    const Column& column = columns_[shown.index];
    const size_t least = std::max(column.kept_width, display_width(column.title));
    if (column.can_shorten && shown.width > least) width -= shown.width - least;
  }
  return width;
}

// Texts of the name column that are another one's when they are shortened.
std::set<std::string> Table::alike_names(const Console& console, const Layout& layout) const {
  std::map<std::string, std::set<std::string>> texts_of;  // by what is left of them
  for (const ShownColumn& shown : layout) {
    const auto is_cut = [&](const std::vector<Cell>& row) {
      return display_width(row.at(shown.index).text) > shown.width;
    };
    if (!columns_[shown.index].is_name || std::ranges::none_of(rows_, is_cut)) continue;
    for (const auto& row : rows_) {
      const std::string& text = row.at(shown.index).text;
      const auto ellipsis = console.screen().ellipsis();
      texts_of[shortened_in_middle(text, shown.width, ellipsis)].insert(text);
    }
  }
  std::set<std::string> alike;
  for (auto& [shortened, texts] : texts_of) {
    if (texts.size() > 1) alike.merge(texts);
  }
  return alike;
}

void Table::drop_columns(Layout& layout, size_t width_max) const {
  int last = 0;
  for (const Column& column : columns_) last = std::max(last, column.drop_order);
  for (int order = 1; order <= last && kept_width(layout) > width_max; ++order) {
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
  if (console.screen().shows_all()) return print_rows(console, indent);
  Table escaped = *this;
  for (auto* rows : {&escaped.rows_, &escaped.hidden_}) {
    for (auto& row : *rows) {
      for (Cell& cell : row) cell.text = console.screen().shown(cell.text);
    }
  }
  escaped.print_rows(console, indent);
}

void Table::print_apart(Console& console) const {
  if (rows_.empty()) return;
  console.out() << '\n';
  print(console);
}

void Table::print_rows(Console& console, const std::string& indent) const {
  Layout layout = full_layout();
  const auto width = console.screen().width;
  if (width) narrow(layout, *width - std::min(*width, indent.size()));
  const std::set<std::string> alike = alike_names(console, layout);
  std::ostream& out = console.out();
  const auto print_row = [&](const std::vector<Cell>& row) {
    std::string line = indent;
    for (const ShownColumn& shown : layout) {
      if (shown.index >= row.size()) break;
      if (&shown != &layout.front()) line.append(kGap, ' ');
      Cell cell = row[shown.index];
      if (columns_[shown.index].is_name && alike.contains(cell.text)) {
        out << indent << console.paint(cell.paint, cell.text) << '\n';
        cell.text.clear();
      }
      line += aligned(console, cell, columns_[shown.index].align, shown.width);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  };
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.push_back({column.title, Paint::Dim});
  const bool has_titles =
      std::ranges::any_of(titles, [](auto& cell) { return !cell.text.empty(); });
  if (has_titles && shows_titles_ && !rows_.empty()) print_row(titles);
  for (const auto& row : rows_) print_row(row);
}

}  // namespace tools
