#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt {

// The bytes of a number, least significant first.
template <class Number>
void append_little_endian(std::string& text, Number number) {
  for (size_t i = 0; i < sizeof(number); ++i) text += static_cast<char>(number >> (8 * i));
}

// Lower-case hexadecimal with leading zeros, as checksums are printed.
std::string hex(uint32_t value);
std::string hex(uint64_t value);

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
