#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <ckpt/folder.h>

namespace ckpt {

// By texts that come from files. Ordered, because whoever makes a file can choose texts that share
// a std::hash: looking one up would then take as long as there are texts.
template <class T>
using TextMap = std::map<std::string, T, std::less<>>;
using TextSet = std::set<std::string, std::less<>>;

// The bytes of a number, least significant first.
template <class Number>
void append_little_endian(std::string& text, Number number) {
  for (size_t i = 0; i < sizeof(number); ++i) text += static_cast<char>(number >> (8 * i));
}

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

// The first bytes of a file: all of them, where there are no more.
std::string head_of(const RandomAccess& file, uint64_t count_bytes_max);
// All of them. Throws Unsupported where there are more than `count_bytes_max`.
std::string all_of(const RandomAccess& file, uint64_t count_bytes_max);

}  // namespace ckpt
