#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

// RFC 1321. Object stores state it of what they received; it protects against nobody.
std::array<uint8_t, 16> md5(std::span<const std::byte> bytes);

}  // namespace ckpt
