#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline std::filesystem::path golden(const std::string& relative) {
  return std::filesystem::path(SHARDWISE_GOLDEN_DIR) / relative;
}

}  // namespace test
