#include "codec/big_integer.h"

#include <algorithm>
#include <vector>

namespace ckpt::pickle {
namespace {

// Magnitudes are base-256 digits, least significant first.
void negate(std::vector<uint8_t>& digits) {
  unsigned carry = 1;
  for (uint8_t& digit : digits) {
    const unsigned value = static_cast<uint8_t>(~digit) + carry;
    digit = static_cast<uint8_t>(value);
    carry = value >> 8;
  }
}

unsigned divide_by_ten(std::vector<uint8_t>& digits) {
  unsigned remainder = 0;
  for (size_t i = digits.size(); i-- > 0;) {
    const unsigned value = remainder << 8 | digits[i];
    digits[i] = static_cast<uint8_t>(value / 10);
    remainder = value % 10;
  }
  while (!digits.empty() && digits.back() == 0) digits.pop_back();
  return remainder;
}

void multiply_by_ten_and_add(std::vector<uint8_t>& digits, unsigned addend) {
  unsigned carry = addend;
  for (uint8_t& digit : digits) {
    const unsigned value = digit * 10U + carry;
    digit = static_cast<uint8_t>(value);
    carry = value >> 8;
  }
  if (carry != 0) digits.push_back(static_cast<uint8_t>(carry));
}

}  // namespace

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
  std::vector<uint8_t> digits;
  for (const std::byte byte : little_endian) digits.push_back(static_cast<uint8_t>(byte));
  const bool negative = !digits.empty() && (digits.back() & 0x80) != 0;
  if (negative) negate(digits);
  while (!digits.empty() && digits.back() == 0) digits.pop_back();
  std::string text;
  while (!digits.empty()) text += static_cast<char>('0' + divide_by_ten(digits));
  if (text.empty()) text = "0";
  if (negative) text += '-';
  std::reverse(text.begin(), text.end());
  return text;
}

std::string little_endian_bytes(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  std::vector<uint8_t> digits;
  for (const char c : decimal.substr(negative ? 1 : 0)) {
    multiply_by_ten_and_add(digits, static_cast<unsigned>(c - '0'));
  }
  digits.push_back(0);  // room for the sign
  if (negative) negate(digits);
  const uint8_t filler = negative ? 0xFF : 0;
  while (digits.size() > 1 && digits.back() == filler &&
         ((digits[digits.size() - 2] ^ filler) & 0x80) == 0) {
    digits.pop_back();
  }
  return {digits.begin(), digits.end()};
}

bool is_decimal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.size() <= kBigIntegerBytesMax * 2 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace ckpt::pickle
