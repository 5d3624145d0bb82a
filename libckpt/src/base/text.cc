#include "base/text.h"

#include <algorithm>
#include <span>

namespace ckpt {

namespace {

// Lead byte -> length and the bits that it carries (Unicode 15, table 3-6).
Utf8Char lead(uint8_t byte) {
  if (byte < 0x80) return {byte, 1};
  if (byte >= 0xC2 && byte <= 0xDF) return {byte & 0x1Fu, 2};
  if (byte >= 0xE0 && byte <= 0xEF) return {byte & 0x0Fu, 3};
  if (byte >= 0xF0 && byte <= 0xF4) return {byte & 0x07u, 4};
  return {};
}

}  // namespace

void append_hex(std::string& text, uint64_t number, int count_digits) {
  for (int i = count_digits; i-- > 0;) text += "0123456789abcdef"[number >> (4 * i) & 15];
}

Utf8Char first_utf8_char(std::string_view text) {
  static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800,
                                           0x10000};  // by length: no overlong forms
  Utf8Char result = lead(static_cast<uint8_t>(text[0]));
  if (result.count_bytes == 0 || result.count_bytes > text.size()) return {};
  for (unsigned i = 1; i < result.count_bytes; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if ((byte & 0xC0) != 0x80) return {};
    result.code_point = result.code_point << 6 | (byte & 0x3Fu);
  }
  const uint32_t c = result.code_point;
  const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
  if (c < kSmallest[result.count_bytes] || surrogate || c > 0x10FFFF) return {};
  return result;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char next = first_utf8_char(text);
    if (next.count_bytes == 0) return false;
    text.remove_prefix(next.count_bytes);
  }
  return true;
}

std::string head_of(const RandomAccess& file, uint64_t count_bytes_max) {
  std::string head(std::min(file.size_bytes(), count_bytes_max), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  return head;
}

}  // namespace ckpt
