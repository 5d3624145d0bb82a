#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <ckpt/checkpoint.h>
#include <optim/checkpoint_bridge.h>

using NamedTensors = std::map<std::string, at::Tensor>;

// All tensors of a file.
inline NamedTensors read_safetensors(const std::filesystem::path& file) {
  const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(file);
  NamedTensors tensors;
  for (const ckpt::TensorEntry& entry : checkpoint.catalog().tensors) {
    tensors[entry.key] = optim::load_tensor(checkpoint, entry);
  }
  return tensors;
}

// The format's own layout: 8 bytes of header length, a JSON header, the payload.
inline void write_safetensors(const std::filesystem::path& file, const NamedTensors& tensors) {
  std::string header = "{";
  std::string payload;
  for (const auto& [name, tensor] : tensors) {
    std::string shape;
    for (const int64_t size : tensor.sizes())
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    const size_t begin = payload.size();
    payload.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    header += (header.size() > 1 ? ",\"" : "\"") + name + "\":{\"dtype\":\"" +
              (tensor.scalar_type() == at::kFloat ? "F32" : "BF16") + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(payload.size()) + "]}";
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  const uint64_t size = header.size();
  std::ofstream stream(file, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(&size), sizeof size);
  stream << header << payload;
}
