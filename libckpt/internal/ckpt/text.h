#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// What texts hold: digits, numbers, UTF-8.
namespace ckpt {

// So many lower-case hexadecimal digits of a number, leading zeros included.
void append_hex(std::string& text, uint64_t number, int count_digits);
// All of them, as checksums are printed.
template <std::unsigned_integral Number>
std::string hex(Number number) {
  std::string text;
  append_hex(text, number, 2 * sizeof(number));
  return text;
}

// The number that a whole text is; of integers in another base than ten, where that is given.
template <class Number, class... Base>
std::optional<Number> number_in(std::string_view text, Base... base) {
  Number number = 0;
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, number, base...);
  return error == std::errc() && end == text_end ? std::optional(number) : std::nullopt;
}

// True for well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// One code point of well-formed or broken UTF-8 at the start of `text`, which must not be empty:
// its length in bytes, or 0 where the bytes are no UTF-8.
struct Utf8Char {
  uint32_t code_point = 0;
  unsigned count_bytes = 0;
};
Utf8Char first_utf8_char(std::string_view text);

}  // namespace ckpt
