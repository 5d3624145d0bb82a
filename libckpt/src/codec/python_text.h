#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt::pickle {

// What Python accepts as a str with "surrogatepass": UTF-8 in which lone surrogates may be encoded.
bool is_python_str(std::string_view text);

// Appends one code point as UTF-8 (surrogates included).
void append_utf8(std::string& text, uint32_t code_point);

// The content of a Python 2 string literal: quotes and backslash escapes removed.
std::optional<std::string> unquoted(std::string_view literal);

// Python's raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX, to UTF-8.
std::optional<std::string> raw_unicode_unescaped(std::string_view line);

// Python's integers as pickles hold them: two's complement, little-endian, any length.
inline constexpr size_t kBigIntegerBytesMax = 4096;

// nullopt when the number needs more than 64 bits.
std::optional<int64_t> small_integer(std::span<const std::byte> little_endian);
// nullopt beyond kBigIntegerBytesMax.
std::optional<std::string> decimal_text(std::span<const std::byte> little_endian);
// The shortest two's complement of a decimal number (is_decimal must hold).
std::string little_endian_bytes(std::string_view decimal);
// An optional '-', then digits, no more than kBigIntegerBytesMax bytes can hold.
bool is_decimal(std::string_view text);

}  // namespace ckpt::pickle
