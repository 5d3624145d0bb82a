#pragma once

#include <fstream>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

// A file of tests/golden/optim_layout.
inline nlohmann::json golden(const std::string& name) {
  const std::string path = std::string(SHARDWISE_GOLDEN_DIR) + "/optim_layout/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return nlohmann::json::parse(file);
}
