// Entries of files that are linked.
#include "layouts/torch_dist/linked_entries.h"

#include <algorithm>

#include <ckpt/error.h>

#include "model/tensor_names.h"

namespace optim {
namespace {

ckpt::DistPlace place_of(const OpenedTraining& source, const ckpt::StorageRegion& region) {
  const std::string& path = source.catalog().files[region.file].path;
  if (region.wrapping == ckpt::Wrapping::ZstdTorchSave) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = path, .key = {}},
                      "holds compressed entries, which cannot be linked",
                      "leave out --link, so that files are copied");
  }
  return {path, region.bytes};
}

}  // namespace

void add_linked_entries(const OpenedTraining& source, ckpt::DistSpec& spec) {
  for (const ckpt::ObjectEntry& object : source.catalog().objects) {
    if (!object.file.empty() || !object.region) continue;
    ckpt::DistObject entry{.key = object.key, .tree = nullptr, .records = {}};
    entry.place = place_of(source, *object.region);
    spec.objects.push_back(std::move(entry));
  }
  for (const ckpt::TensorEntry& tensor : source.catalog().tensors) {
    if (!tensor.file.empty()) continue;  // of common.pt
    const auto index = static_cast<uint32_t>(spec.tensors.size());
    spec.tensors.push_back({tensor.key, tensor.dtype, tensor.shape, tensor.requires_grad});
    for (const ckpt::Chunk& chunk : tensor.chunks) {
      spec.chunks.push_back({index,
                             0,
                             chunk.box,
                             {},
                             std::make_shared<ckpt::DistPlace>(place_of(source, chunk.region))});
    }
  }
}

uint32_t unused_rank(const OpenedTraining& source) {
  uint32_t rank = 0;
  for (const ckpt::FileEntry& file : source.catalog().files) {
    const auto writer = writer_of(file.path);
    if (writer && file.path.ends_with(".distcp")) rank = std::max(rank, *writer + 1);
  }
  return rank;
}

}  // namespace optim
