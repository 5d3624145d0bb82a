#include "common/text.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ranges>
#include <span>

#include <ckpt/error.h>
#include <ckpt/nearest.h>

namespace tools {
namespace {

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u; }

struct Range {
  uint32_t first, last;
};
// Of Unicode's East_Asian_Width the blocks that are wide, and emoji.
constexpr Range kWide[] = {{0x1100, 0x115F},   {0x2E80, 0xA4CF},   {0xA960, 0xA97F},
                           {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
                           {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F},
                           {0x1F680, 0x1F6FF}, {0x1F900, 0x1FAFF}, {0x20000, 0x3FFFD}};

bool is_wide(uint32_t code_point) {
  return std::ranges::any_of(kWide, [&](const Range& range) {
    return code_point >= range.first && code_point <= range.last;
  });
}

// What is never cut in two: a character, an escape of ckpt::escaped(), a colour's sequence.
struct Unit {
  size_t count_bytes;
  size_t width;
};

size_t escape_length(std::string_view text) {
  if (text.size() < 2) return 1;
  const size_t length = text[1] == 'x' ? 4 : text[1] == 'u' ? 6 : text[1] == 'U' ? 10 : 2;
  const std::string_view digits = text.substr(2, length - 2);
  const bool is_whole = digits.size() == length - 2 &&
                        digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_whole ? length : 1;
}

Unit character_at(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  uint32_t code_point = lead < 0xE0 ? lead & 0x1Fu : lead < 0xF0 ? lead & 0xFu : lead & 0x7u;
  size_t end = 1;
  for (; end < text.size() && !starts_character(text[end]); ++end) {
    code_point = code_point << 6 | (static_cast<unsigned char>(text[end]) & 0x3Fu);
  }
  return {end, lead >= 0xC0 && is_wide(code_point) ? size_t{2} : size_t{1}};
}

Unit unit_at(std::string_view text) {
  if (text[0] == '\\') return {escape_length(text), escape_length(text)};
  if (text.starts_with("\033[")) {
    const size_t end = text.find('m');
    return {end == std::string_view::npos ? text.size() : end + 1, 0};
  }
  return character_at(text);
}

std::vector<Unit> units_of(std::string_view text) {
  std::vector<Unit> units;
  for (; !text.empty(); text.remove_prefix(units.back().count_bytes)) {
    units.push_back(unit_at(text));
  }
  return units;
}

// Bytes of the longest run of units, from the front of the range on, that takes `width_max`.
template <class Units>
size_t bytes_within(const Units& units, size_t width_max) {
  size_t count_bytes = 0, width = 0;
  for (const Unit& unit : units) {
    width += unit.width;
    if (width > width_max) break;
    count_bytes += unit.count_bytes;
  }
  return count_bytes;
}

// In the largest of the units that gives 1 or more, each `step` times the one before.
std::string scaled_text(uint64_t count, unsigned step, std::span<const char* const> units) {
  if (count < step) return std::to_string(count);
  double value = static_cast<double>(count) / step;
  size_t unit = 0;
  while (value >= step - 0.05 && unit + 1 < units.size()) {  // 1023.95 would be printed as 1024.0
    value /= step;
    ++unit;
  }
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f %s", value, units[unit]);
  return buffer;
}

// The rest of a word that was begun: only where one alone fits.
std::optional<std::string> only_completion(std::string_view word,
                                           const std::vector<std::string>& known) {
  const auto completes = [&](const std::string& each) { return each.starts_with(word); };
  if (word.size() < 2 || std::ranges::count_if(known, completes) != 1) return std::nullopt;
  return *std::ranges::find_if(known, completes);
}

}  // namespace

std::string size_text(uint64_t count_bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  return scaled_text(count_bytes, 1024, kUnits) + (count_bytes < 1024 ? " B" : "");
}

std::string amount_text(uint64_t count) {
  constexpr const char* kUnits[] = {"K", "M", "B", "T"};
  return scaled_text(count, 1000, kUnits);
}

std::string count_text(uint64_t count, std::string_view thing) {
  return std::to_string(count) + " " + std::string(thing) + (count == 1 ? "" : "s");
}

std::string number_text(double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, std::end(buffer), value);
  return std::string(buffer, result.ptr);
}

std::string short_number_text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.4g", value);
  return buffer;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + separator.size());
  }
}

void refuse_usage(const std::string& problem, const std::string& hint) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, problem, hint);
}

size_t display_width(std::string_view utf8) {
  const auto is_plain = [](char character) { return character >= ' ' && character < 0x7F; };
  if (std::ranges::all_of(utf8, is_plain)) return utf8.size();
  size_t width = 0;
  while (!utf8.empty()) {
    const Unit unit = unit_at(utf8);
    width += unit.width;
    utf8.remove_prefix(unit.count_bytes);
  }
  return width;
}

std::string shortened(std::string_view utf8, size_t width_max) {
  if (display_width(utf8) <= width_max) return std::string(utf8);
  const size_t keep = width_max < 3 ? 0 : width_max - 3;
  size_t end = 0;
  for (size_t width = 0; end < utf8.size(); ++end) {
    if (starts_character(utf8[end]) && width++ == keep) break;
  }
  return std::string(utf8.substr(0, end)) + "...";
}

std::string shortened_in_middle(std::string_view utf8, size_t width_max,
                                std::string_view ellipsis) {
  if (display_width(utf8) <= width_max) return std::string(utf8);
  const size_t blanks = std::min(utf8.find_first_not_of(' '), width_max / 2);
  const std::string_view rest = utf8.substr(blanks);
  const size_t room = width_max - blanks;
  if (room <= display_width(ellipsis))
    return std::string(utf8.substr(0, blanks)) + std::string(room, '.');
  const size_t kept = room - display_width(ellipsis);
  const std::vector<Unit> units = units_of(rest);
  const size_t front = bytes_within(units, (kept + 1) / 2);
  const size_t back =
      bytes_within(std::views::reverse(units), kept - display_width(rest.substr(0, front)));
  return std::string(utf8.substr(0, blanks + front)) + std::string(ellipsis) +
         std::string(rest.substr(rest.size() - back));
}

std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string lines;
  size_t column = 0;
  while (!text.empty()) {
    const size_t blanks = std::min(text.find_first_not_of(' '), text.size());
    const size_t end = std::min(text.find(' ', blanks), text.size());
    const size_t word_width = display_width(text.substr(blanks, end - blanks));
    if (column != 0 && column + blanks + word_width > width) {
      lines += '\n' + std::string(indent, ' ');
      column = indent;
    } else {
      lines += text.substr(0, blanks);
      column += blanks;
    }
    lines += text.substr(blanks, end - blanks);
    column += word_width;
    text.remove_prefix(end);
  }
  return lines;
}

std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& known) {
  if (word.size() < 2) return std::nullopt;
  const auto nearest = ckpt::nearest(word, known);
  return nearest ? nearest : only_completion(word, known);
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return std::string(text);
  const std::string shown = ckpt::escaped(text);  // what bash, too, takes for the same
  return (shown == text ? "'" : "$'") + shown + "'";
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const auto meant = nearest_word(word, known);
  return meant ? "; did you mean '" + ckpt::escaped(*meant) + "'?" : "";
}

}  // namespace tools
