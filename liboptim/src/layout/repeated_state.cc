#include "layout/repeated_state.h"

#include <ckpt/tensor_stream.h>

#include "layout/value_compare.h"

namespace optim {
namespace {

using ckpt::Chunk;
using ckpt::TensorEntry;

bool are_viewed_alike(const Chunk& a, const Chunk& b) {
  if (a.payload_offset_bytes != b.payload_offset_bytes || !a.view != !b.view) return false;
  return !a.view || (a.view->offset == b.view->offset && a.view->strides == b.view->strides);
}

// Of tensors of one dtype and shape.
bool have_one_stated_checksum(const TensorEntry& a, const TensorEntry& b) {
  if (a.chunks.size() != 1 || b.chunks.size() != 1) return false;
  const ckpt::StorageRegion &in_a = a.chunks[0].region, &in_b = b.chunks[0].region;
  return in_a.crc32 && in_a.crc32 == in_b.crc32 &&
         in_a.bytes.count_bytes == in_b.bytes.count_bytes &&
         are_viewed_alike(a.chunks[0], b.chunks[0]);
}

}  // namespace

void check_repeated_state(const ckpt::Checkpoint& source, const Place& copy,
                          const std::string& original_file) {
  const ckpt::Value copied = source.document(copy.file)->tree.root();
  const ckpt::Value original = source.document(original_file)->tree.root();
  const std::string it = original_file.substr(original_file.rfind('/') + 1);
  const auto state = copied.find(copy.pointer.substr(1));
  if (!state) return;
  if (const auto where = first_difference(*state, original)) {
    Place{copy.file, copy.pointer + *where}.corrupt(
        "differs from " + it + ", which it should repeat", kMixedFilesHint);
  }
  for (const TensorEntry& tensor : source.catalog().tensors) {
    if (tensor.file != original_file) continue;
    const Place own{copy.file, copy.pointer + tensor.key};
    const TensorEntry* repeated = source.catalog().find_tensor(own.pointer, own.file);
    if (repeated == nullptr) own.corrupt("is no tensor");
    if (have_one_stated_checksum(*repeated, tensor) ||
        ckpt::same_bytes(*repeated, source, tensor, source)) {
      continue;
    }
    own.corrupt("its values differ from " + it + ", which it should repeat", kMixedFilesHint);
  }
}

}  // namespace optim
