#include "codec/python_text.h"

#include <algorithm>
#include <memory>
#include <new>

#include <openssl/bn.h>

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

using Number = std::unique_ptr<BIGNUM, decltype(&BN_free)>;

Number owned(BIGNUM* number) {
  if (number == nullptr) throw std::bad_alloc();
  return {number, BN_free};
}

void require(int success) {  // only memory can be missing
  if (success == 0) throw std::bad_alloc();
}

// Adds 2^(8 * count_bytes), or takes it off: between a negative number and its two's complement.
void move_by_power(BIGNUM* number, int count_bytes, decltype(&BN_add) operation) {
  const Number power = owned(BN_new());
  require(BN_set_bit(power.get(), 8 * count_bytes));
  require(operation(number, number, power.get()));
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
  const auto* const bytes = reinterpret_cast<const unsigned char*>(little_endian.data());
  const int count_bytes = static_cast<int>(little_endian.size());
  const Number number = owned(BN_lebin2bn(bytes, count_bytes, nullptr));
  const bool negative = count_bytes > 0 && (bytes[count_bytes - 1] & 0x80) != 0;
  if (negative) move_by_power(number.get(), count_bytes, BN_sub);
  char* const text = BN_bn2dec(number.get());
  if (text == nullptr) throw std::bad_alloc();
  const std::string decimal(text);
  OPENSSL_free(text);
  return decimal;
}

std::string little_endian_bytes(std::string_view decimal) {
  Number number = owned(BN_new());
  BIGNUM* parsed = number.get();
  require(BN_dec2bn(&parsed, std::string(decimal).c_str()));
  const bool negative = BN_is_negative(parsed) != 0;
  if (negative) require(BN_add_word(parsed, 1));        // -128 takes the bits of 127
  const int count_bytes = BN_num_bits(parsed) / 8 + 1;  // with room for the sign
  if (negative) {
    require(BN_sub_word(parsed, 1));
    move_by_power(parsed, count_bytes, BN_add);
  }
  std::string bytes(static_cast<size_t>(count_bytes), '\0');
  require(BN_bn2lebinpad(parsed, reinterpret_cast<unsigned char*>(bytes.data()), count_bytes) >= 0);
  return bytes;
}

bool is_decimal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.size() <= kBigIntegerBytesMax * 2 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace ckpt::pickle
