#include <ckpt/printed.h>

#include <ckpt/error.h>
#include <ckpt/key_pattern.h>

namespace ckpt {

std::string qualified_key(std::string_view file, std::string_view key) {
  return file.empty() ? printed_key(key) : escaped(file) + ":" + printed_key(key);
}

std::string shape_text(const Extents& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace ckpt
