#pragma once

#include <cstdint>

namespace ckpt {

// Resident memory of this process, in bytes; 0 where the system does not say.
uint64_t resident_bytes();

}  // namespace ckpt
