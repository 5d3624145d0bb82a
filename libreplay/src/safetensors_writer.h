#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace optim {

// One safetensors file of float32 tensors, whose names and shapes are known before their values.
class SafetensorsWriter {
 public:
  using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  // Throws IoFailure where the file cannot be written.
  SafetensorsWriter(std::filesystem::path file, const Shapes& shapes);

  // A tensor of the list, in any order. Throws IoFailure.
  void write(const std::string& name, const at::Tensor& tensor);
  void finish();  // all were written

 private:
  void require_written();

  std::filesystem::path path_;
  std::ofstream file_;
  std::map<std::string, int64_t> places_;  // where the bytes of each begin
};

}  // namespace optim
