#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace optim {

// A small JSON file. Throws NotFound, IoFailure; Unsupported for more than 1 MiB; Corrupt, also for
// an object with a key twice.
nlohmann::json read_json_file(const std::filesystem::path& path);

}  // namespace optim
