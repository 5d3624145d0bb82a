#include "layouts/torch/repeated_state.h"

#include <ckpt/tensor_stream.h>

#include "args/value_place.h"
#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::Chunk;
using ckpt::TensorEntry;

constexpr std::string_view kRepeatedKey = "optimizer";

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

bool are_equal(const TensorEntry& a, const TensorEntry& b, const ckpt::Checkpoint& source) {
  return have_one_stated_checksum(a, b) || ckpt::same_bytes(a, source, b, source);
}

void check_repeated_state(const ckpt::Checkpoint& source, const std::string& model_file,
                          const std::string& rank_file) {
  const auto copy = source.document(model_file)->tree.root().find(kRepeatedKey);
  if (!copy) return;
  const Place copy_place = Place{model_file, ""} / kRepeatedKey;
  const std::string rank_file_name = rank_file.substr(rank_file.rfind('/') + 1);
  if (const auto where = first_difference(*copy, source.document(rank_file)->tree.root())) {
    Place{model_file, copy_place.pointer + *where}.corrupt(
        "differs from " + rank_file_name + ", which it should repeat", kMixedFilesHint);
  }
  for (const TensorEntry& tensor : source.catalog().tensors) {
    if (tensor.file != rank_file) continue;
    const Place own{model_file, copy_place.pointer + tensor.key};
    const TensorEntry* repeated = source.catalog().find_tensor(own.pointer, own.file);
    if (repeated == nullptr) own.corrupt("is not a tensor");
    if (are_equal(*repeated, tensor, source)) continue;
    own.corrupt("its values differ from " + rank_file_name + ", which it should repeat",
                kMixedFilesHint);
  }
}

}  // namespace optim
