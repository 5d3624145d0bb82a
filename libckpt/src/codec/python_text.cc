#include "codec/python_text.h"

#include "base/text.h"

namespace ckpt::pickle {
namespace {

constexpr uint32_t kCodePointMax = 0x10FFFF;

bool is_encoded_surrogate(std::string_view text) {
  return text.size() >= 3 && static_cast<uint8_t>(text[0]) == 0xED &&
         (static_cast<uint8_t>(text[1]) & 0xE0) == 0xA0 &&
         (static_cast<uint8_t>(text[2]) & 0xC0) == 0x80;
}

std::optional<uint32_t> hex_number(std::string_view text, size_t count_digits) {
  if (text.size() < count_digits) return std::nullopt;
  return number_in<uint32_t>(text.substr(0, count_digits), 16);
}

std::optional<char> simple_escape(char c) {
  switch (c) {
    case '\\':
    case '\'':
    case '"': return c;
    case 'a': return '\a';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'v': return '\v';
    default: return std::nullopt;
  }
}

// Reads up to three octal digits at `position` and moves it behind them.
char octal_escape(std::string_view text, size_t& position) {
  unsigned value = 0;
  for (int digits = 0;
       digits < 3 && position < text.size() && text[position] >= '0' && text[position] <= '7';
       ++digits) {
    value = value * 8 + static_cast<unsigned>(text[position++] - '0');
  }
  return static_cast<char>(value);
}

}  // namespace

bool is_python_str(std::string_view text) {
  while (!text.empty()) {
    unsigned count = first_utf8_char(text).count_bytes;
    if (count == 0 && is_encoded_surrogate(text)) count = 3;
    if (count == 0) return false;
    text.remove_prefix(count);
  }
  return true;
}

void append_utf8(std::string& text, uint32_t code_point) {
  if (code_point < 0x80) return text.push_back(static_cast<char>(code_point));
  constexpr uint32_t kLeads[] = {0, 0xC0, 0xE0, 0xF0};  // by the number of bytes behind them
  unsigned behind = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  text += static_cast<char>(kLeads[behind] | code_point >> 6 * behind);
  while (behind-- > 0) text += static_cast<char>(0x80 | (code_point >> 6 * behind & 0x3F));
}

std::optional<std::string> unquoted(std::string_view literal) {
  if (literal.size() < 2 || (literal.front() != '\'' && literal.front() != '"') ||
      literal.back() != literal.front()) {
    return std::nullopt;
  }
  literal = literal.substr(1, literal.size() - 2);
  std::string text;
  for (size_t i = 0; i < literal.size();) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      text += literal[i++];
    } else if (const auto plain = simple_escape(literal[i + 1])) {
      text += *plain;
      i += 2;
    } else if (literal[i + 1] == 'x') {
      const auto value = hex_number(literal.substr(i + 2), 2);
      if (!value) return std::nullopt;
      text += static_cast<char>(*value);
      i += 4;
    } else if (literal[i + 1] >= '0' && literal[i + 1] <= '7') {
      text += octal_escape(literal, ++i);
    } else {
      text += literal[i++];
    }
  }
  return text;
}

std::optional<std::string> raw_unicode_unescaped(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size();) {
    const char kind = line[i] == '\\' && i + 1 < line.size() ? line[i + 1] : '\0';
    if (kind == 'u' || kind == 'U') {
      const size_t digits = kind == 'u' ? 4 : 8;
      const auto value = hex_number(line.substr(i + 2), digits);
      if (!value || *value > kCodePointMax) return std::nullopt;
      append_utf8(text, *value);
      i += 2 + digits;
    } else {
      append_utf8(text, static_cast<uint8_t>(line[i++]));
    }
  }
  return text;
}

}  // namespace ckpt::pickle
