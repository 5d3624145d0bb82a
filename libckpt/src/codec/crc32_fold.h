#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

inline constexpr size_t kFoldedBytes = 128;
using FoldedBytes = std::array<uint8_t, kFoldedBytes>;

bool can_fold();  // whether this processor has VPCLMULQDQ for 256 bits

// A few bytes with the checksum of many: the register that starts with `state` (the complement of
// the CRC-32 before) and takes in `bytes` ends as one does that starts with 0 and takes in the
// result. bytes.size() is a multiple of kFoldedBytes and not 0. Only where can_fold().
// Source: V. Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction, Intel 2009.
FoldedBytes fold(std::span<const std::byte> bytes, uint32_t state);

}  // namespace ckpt
