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

// CRC-32 as zip uses it (polynomial 0x04C11DB7, reflected). `crc` is that of the bytes before.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc = 0);

// What bytes with this checksum contribute to that of a whole in which `count_bytes` follow them.
// The checksum of the whole is the exclusive or of what its parts contribute, in any order: parts
// of one record are read by different threads.
uint32_t crc32_before(uint32_t crc, uint64_t count_bytes);

// The checksum of two byte strings, one after the other, from the checksums of both.
uint32_t crc32_of_both(uint32_t first, uint32_t second, uint64_t second_count_bytes);

}  // namespace ckpt
