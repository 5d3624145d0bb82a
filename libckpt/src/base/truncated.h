#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ckpt/error.h>

namespace ckpt {

// What is said of a file that ends after `found_bytes`; `expected_bytes`: how long it was, where
// that is known.
std::string truncated_text(uint64_t found_bytes, std::optional<uint64_t> expected_bytes = {});

// The same as an error, Corrupt and incomplete.
Error truncated(Where where, uint64_t found_bytes, std::optional<uint64_t> expected_bytes = {});

}  // namespace ckpt
