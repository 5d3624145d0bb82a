#pragma once

#include <cstdint>
#include <optional>

#include <ckpt/checkpoint.h>

namespace ckpt {

// The CRC-32 of a tensor's row-major bytes as the checksums that its files state for their storages
// give it: nothing is read but where the storages are. None where a storage has no checksum, holds
// more than its chunk, or a chunk is no contiguous run of the tensor.
std::optional<uint32_t> stated_checksum(const TensorEntry& tensor, const PayloadSource& source);

}  // namespace ckpt
