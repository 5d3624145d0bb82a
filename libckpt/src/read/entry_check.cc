#include "read/entry_check.h"

#include <algorithm>

namespace ckpt {
namespace {

std::string shape_text(const Extents& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

}  // namespace

void check_entry(const TensorView& view, const TensorEntry& tensor, const Chunk& chunk,
                 const Where& where) {
  if (view.dtype == tensor.dtype && std::ranges::equal(view.shape, chunk.box.sizes)) return;
  throw Error(ErrorCode::Corrupt, where,
              "the entry holds " + std::string(ckpt::name(view.dtype)) + " " +
                  shape_text(view.shape) + ", but .metadata says " +
                  std::string(ckpt::name(tensor.dtype)) + " " + shape_text(chunk.box.sizes));
}

}  // namespace ckpt
