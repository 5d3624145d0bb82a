#include "codec/python_text.h"

#include <algorithm>
#include <bit>
#include <vector>

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

// A number of any size in digits of 2^32, the lowest first and the highest not 0.
using Digits = std::vector<uint32_t>;

constexpr uint32_t kBillion = 1'000'000'000;  // nine decimal digits

// number = number * factor + added
void multiply_add(Digits& number, uint32_t factor, uint32_t added) {
  uint64_t carry = added;
  for (uint32_t& digit : number) {
    carry += uint64_t{digit} * factor;
    digit = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  if (carry != 0) number.push_back(static_cast<uint32_t>(carry));
}

void drop_zeros(Digits& number) {
  while (!number.empty() && number.back() == 0) number.pop_back();
}

// number = number / kBillion; gives the remainder.
uint32_t take_nine_decimals(Digits& number) {
  uint64_t rest = 0;
  for (size_t i = number.size(); i-- > 0;) {
    rest = rest << 32 | number[i];
    number[i] = static_cast<uint32_t>(rest / kBillion);
    rest %= kBillion;
  }
  drop_zeros(number);
  return static_cast<uint32_t>(rest);
}

void subtract_one(Digits& number) {  // not of 0
  for (uint32_t& digit : number) {
    if (digit-- != 0) break;
  }
  drop_zeros(number);
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

std::optional<int64_t> small_integer(std::span<const std::byte> little_endian) {
  if (little_endian.empty()) return 0;
  const bool negative = (static_cast<uint8_t>(little_endian.back()) & 0x80) != 0;
  const auto sign_byte = static_cast<std::byte>(negative ? 0xFF : 0);
  const auto repeats_sign = [&](std::byte byte) { return byte == sign_byte; };
  if (little_endian.size() > 8) {  // more bytes than the number needs are as good as it
    const auto rest = little_endian.subspan(8);
    const bool same_sign = ((little_endian[7] ^ sign_byte) & std::byte{0x80}) == std::byte{0};
    if (!same_sign || !std::ranges::all_of(rest, repeats_sign)) return std::nullopt;
    little_endian = little_endian.first(8);
  }
  uint64_t bits = negative ? ~uint64_t{0} : 0;
  for (size_t i = little_endian.size(); i-- > 0;) {
    bits = bits << 8 | static_cast<uint8_t>(little_endian[i]);
  }
  return static_cast<int64_t>(bits);
}

std::optional<std::string> decimal_text(std::span<const std::byte> little_endian) {
  if (little_endian.size() > kBigIntegerBytesMax) return std::nullopt;
  const bool negative =
      !little_endian.empty() && (little_endian.back() & std::byte{0x80}) != std::byte{0};
  const uint8_t flip = negative ? 0xFF : 0;  // the bits of -n are those of n - 1, inverted
  Digits number((little_endian.size() + 3) / 4);
  for (size_t i = 0; i < little_endian.size(); ++i) {
    const uint32_t byte = static_cast<uint8_t>(little_endian[i]) ^ flip;
    number[i / 4] |= byte << i % 4 * 8;
  }
  drop_zeros(number);
  if (negative) multiply_add(number, 1, 1);

  std::string reversed;
  while (!number.empty()) {
    uint32_t decimals = take_nine_decimals(number);
    for (int i = 0; i < 9; ++i, decimals /= 10) reversed += static_cast<char>('0' + decimals % 10);
  }
  reversed.resize(std::max<size_t>(reversed.find_last_not_of('0') + 1, 1), '0');
  if (negative) reversed += '-';
  return std::string(reversed.rbegin(), reversed.rend());
}

std::string little_endian_bytes(std::string_view decimal) {
  bool negative = decimal.starts_with('-');
  Digits number;
  std::string_view rest = decimal.substr(negative ? 1 : 0);
  while (!rest.empty()) {  // nine digits at a time, the first ones alone
    const size_t count = (rest.size() - 1) % 9 + 1;
    multiply_add(number, kBillion, number_in<uint32_t>(rest.substr(0, count)).value());
    rest.remove_prefix(count);
  }
  negative = negative && !number.empty();
  if (negative) subtract_one(number);  // -128 takes the bits of 127
  const size_t count_bits =
      number.empty() ? 0 : number.size() * 32 - std::countl_zero(number.back());
  std::string bytes(count_bits / 8 + 1, '\0');  // with room for the sign
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint32_t digit = i / 4 < number.size() ? number[i / 4] : 0;
    bytes[i] = static_cast<char>((digit >> i % 4 * 8) ^ (negative ? 0xFFu : 0u));
  }
  return bytes;
}

bool is_decimal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.size() <= kBigIntegerBytesMax * 2 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace ckpt::pickle
