#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <common/console.h>

namespace tools {

enum class Align : uint8_t { Left, Right };

// On a terminal that is too narrow columns with a drop order go first, 1 before 2, then those that
// can be shortened lose the middle of their texts.
struct Column {
  std::string title = {};
  Align align = Align::Left;
  bool can_shorten = false;
  int drop_order = 0;  // 0: stays
  // Of one that can be shortened: to this width it is before another one is dropped.
  size_t kept_width = SIZE_MAX;
  // Texts that would be alike when they are shortened are whole, on lines of their own, which a
  // terminal breaks where they are longer than it is wide.
  bool is_name = false;
};

struct Cell {
  std::string text;  // escaped by whoever makes it
  Paint paint = Paint::Plain;
};

// Rows of aligned columns, two spaces apart, the titles dimmed; no titles line if all are empty.
// Not wider than the terminal, but for names that would be alike; whole where stdout is none.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add_row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  // A row that is not shown: the columns are as wide as if it were.
  void make_room(std::vector<Cell> cells) { hidden_.push_back(std::move(cells)); }
  void hide_titles() { shows_titles_ = false; }
  void print(Console& console, const std::string& indent = {}) const;
  void print_apart(Console& console) const;  // below a blank line; nothing where it has no rows

 private:
  struct ShownColumn {
    size_t index;
    size_t width;
  };
  using Layout = std::vector<ShownColumn>;
  Layout full_layout() const;
  void print_rows(Console& console, const std::string& indent) const;
  size_t kept_width(const Layout& layout) const;
  std::set<std::string> alike_names(const Console& console, const Layout& layout) const;
  void drop_columns(Layout& layout, size_t width_max) const;
  void narrow(Layout& layout, size_t width_max) const;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_, hidden_;
  bool shows_titles_ = true;
};

}  // namespace tools
