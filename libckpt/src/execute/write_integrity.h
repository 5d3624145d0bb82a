#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ckpt {

// Writes integrity.json into a folder: the SHA-256 of each of these files in it. Returns how long
// it is.
uint64_t write_integrity(const std::filesystem::path& folder, const std::vector<std::string>& names,
                         unsigned threads);

}  // namespace ckpt
