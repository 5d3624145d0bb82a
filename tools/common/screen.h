#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tools {

// What whoever reads a stream can be shown.
struct Screen {
  std::optional<size_t> width;  // columns of the terminal; none: no terminal, nothing is cut
  bool is_utf8 = true;

  // COLUMNS where it is set, else what the terminal says, else 80.
  static Screen of(int descriptor);

  std::string_view ellipsis() const { return is_utf8 ? "\xE2\x80\xA6" : "..."; }
  // `utf8` as a terminal of this locale shows it: "\xNN" for what is not ASCII, unless it is UTF-8.
  // What goes elsewhere stays as it is.
  std::string shown(std::string_view utf8) const;
};

// `text` for people: as the screen shows it, broken at blanks where it is longer than a line.
std::string fitted(std::string_view text, const Screen& screen);

}  // namespace tools
