#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt::pickle {

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
