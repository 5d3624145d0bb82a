#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt {

// Lower-case hexadecimal with leading zeros, as checksums are printed.
std::string hex(uint32_t value);
std::string hex(uint64_t value);

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
