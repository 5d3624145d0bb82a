#include "read/entry_check.h"

namespace ckpt {
namespace {

// An archive of one tensor is this much longer than its payload, at most.
constexpr uint64_t kArchiveFrameBytesMax = uint64_t{1} << 20;

std::string shape_text(const Extents& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

}  // namespace

uint64_t inflated_bytes_max(const TensorEntry* tensor, const Chunk* chunk, const Limits& limits) {
  if (tensor == nullptr) return limits.inflated_object_bytes_max;
  return element_count(chunk->box.sizes) * bytes_per_element(tensor->dtype) + kArchiveFrameBytesMax;
}

void check_entry(const TensorView& view, const TensorEntry& tensor, const Chunk& chunk,
                 const Where& where) {
  if (view.dtype == tensor.dtype && view.shape == chunk.box.sizes) return;
  throw Error(ErrorCode::Corrupt, where,
              "the entry holds " + std::string(ckpt::name(view.dtype)) + " " +
                  shape_text(view.shape) + ", but .metadata says " +
                  std::string(ckpt::name(tensor.dtype)) + " " + shape_text(chunk.box.sizes));
}

}  // namespace ckpt
