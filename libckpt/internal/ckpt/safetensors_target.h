#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/target.h>

namespace ckpt {

// A safetensors file, or a folder of them, to be written.

struct SafetensorsSpec {
  struct Tensor {
    std::string key;
    TensorSource source;
    std::optional<Extents> shape = {};  // of the same elements; nullopt: the box's
  };
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;  // `format` is added where it is missing: "pt"
  bool as_folder = false;  // model.safetensors, or several files and their index
  uint64_t file_bytes_max = uint64_t{5'000'000'000};  // of tensors in one of several files
};
// Adds to `not_carried` the tensors whose type safetensors has not. Throws Unsupported where a key
// is no UTF-8 or a header gets longer than the format allows.
Target make_safetensors_target(SafetensorsSpec spec, std::vector<NotCarried> not_carried = {});

}  // namespace ckpt
