#include "common/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

namespace tools {
namespace {

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u; }

}  // namespace

std::string size_text(uint64_t count_bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (count_bytes < 1024) return std::to_string(count_bytes) + " B";
  double value = static_cast<double>(count_bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {  // 1023.95 would be printed as 1024.0
    value /= 1024;
    ++unit;
  }
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f %s", value, kUnits[unit]);
  return buffer;
}

std::string shape_text(const ckpt::Extents& extents) {
  std::string text = "[";
  for (size_t i = 0; i < extents.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(extents[i]);
  }
  return text + "]";
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

size_t display_width(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), starts_character));
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

}  // namespace tools
