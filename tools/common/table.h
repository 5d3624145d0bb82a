#pragma once

#include <string>
#include <vector>

#include <common/console.h>

namespace tools {

enum class Align : uint8_t { Left, Right };

struct Column {
  std::string title;
  Align align = Align::Left;
};

struct Cell {
  std::string text;  // escaped by whoever makes it
  Paint paint = Paint::Plain;
};

// Rows of aligned columns, two spaces apart, the titles dimmed; no titles line if all are empty.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add_row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  // A row that is not shown: the columns are as wide as if it were.
  void make_room(std::vector<Cell> cells) { hidden_.push_back(std::move(cells)); }
  void hide_titles() { shows_titles_ = false; }
  void print(Console& console, const std::string& indent = {}) const;

 private:
  std::vector<size_t> widths() const;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_, hidden_;
  bool shows_titles_ = true;
};

}  // namespace tools
