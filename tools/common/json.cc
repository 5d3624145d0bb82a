#include "common/json.h"

#include <ckpt/error.h>
#include <common/console.h>

#include <algorithm>
#include <cstdint>
#include <ostream>

namespace tools {
namespace {

// Length of the UTF-8 sequence that starts `text`, 0 if there is none (RFC 3629: no overlong forms,
// no surrogates).
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t index) -> uint32_t { return static_cast<uint8_t>(text[index]); };
  const auto continues = [&](size_t index) { return (byte(index) & 0xC0u) == 0x80u; };
  const uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t index = 1; index < length; ++index) {
    if (!continues(index)) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Of a sequence that sequence_length() has accepted.
uint32_t code_point_of(std::string_view sequence) {
  const auto first = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1) return first;
  uint32_t code_point = first & (0x7Fu >> sequence.size());
  for (const char byte : sequence.substr(1)) {
    code_point = code_point << 6 | (static_cast<uint8_t>(byte) & 0x3Fu);
  }
  return code_point;
}

void append_unit(std::string& json, uint32_t utf16_unit) {
  constexpr char kDigits[] = "0123456789abcdef";
  json += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) json += kDigits[utf16_unit >> shift & 15];
}

void append_code_point(std::string& json, uint32_t code_point) {
  if (code_point < 0x10000) return append_unit(json, code_point);
  append_unit(json, 0xD800 + ((code_point - 0x10000) >> 10));
  append_unit(json, 0xDC00 + (code_point & 0x3FF));
}

}  // namespace

std::string printable_json(std::string_view json) {
  std::string printable;
  printable.reserve(json.size());
  for (size_t length = 0; !json.empty(); json.remove_prefix(length)) {
    length = std::max<size_t>(sequence_length(json), 1);
    const std::string_view next = json.substr(0, length);
    const bool may_hide = length > 1 || next[0] == '\x7F';  // the rest of ASCII is JSON's own
    if (may_hide && ckpt::escaped(next) != next) {
      append_code_point(printable, code_point_of(next));
    } else {
      printable += next;
    }
  }
  return printable;
}

std::string json_text(std::string_view name) {
  return is_utf8(name) ? std::string(name) : ckpt::escaped(name);
}

nlohmann::json json_document(uint64_t schema_version) {
  return {{"schema_version", schema_version}};
}

void print_json(Console& console, const nlohmann::json& document) {
  console.out() << printable_json(document.dump(2)) << '\n';
}

}  // namespace tools
