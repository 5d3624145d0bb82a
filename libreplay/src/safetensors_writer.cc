#include "safetensors_writer.h"

#include <ckpt/error.h>
#include <nlohmann/json.hpp>

namespace optim {

SafetensorsWriter::SafetensorsWriter(std::filesystem::path file, const Shapes& shapes)
    : path_(std::move(file)), file_(path_, std::ios::binary) {
  nlohmann::json header;
  int64_t end = 0;
  for (const auto& [name, shape] : shapes) {
    int64_t count_bytes = sizeof(float);
    for (const int64_t size : shape) count_bytes *= size;
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {end, end + count_bytes}}};
    places_[name] = end;
    end += count_bytes;
  }
  std::string text = header.dump();
  constexpr size_t kAlignment = 8;
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const uint64_t length = text.size();
  file_.write(reinterpret_cast<const char*>(&length), sizeof length);
  file_.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (auto& [name, place] : places_) place += static_cast<int64_t>(sizeof length + text.size());
  require_written();
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kCPU, at::kFloat).contiguous();
  file_.seekp(places_.at(name));
  file_.write(static_cast<const char*>(values.const_data_ptr()),
              static_cast<std::streamsize>(values.nbytes()));
  require_written();
}

void SafetensorsWriter::finish() {
  file_.close();
  require_written();
}

void SafetensorsWriter::require_written() {
  if (file_) return;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = path_.string()}, "cannot be written");
}

}  // namespace optim
