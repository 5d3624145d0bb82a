#pragma once

#include <optional>
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

}  // namespace ckpt::pickle
