#include "format/torch_dist/dist_parts.h"

#include <utility>
#include <vector>

#include <ckpt/error.h>

#include "model/check_catalog.h"

namespace ckpt {
namespace {

std::string identity(size_t tensor, const Box& box) {
  std::string text = std::to_string(tensor);
  for (const uint64_t offset : box.offsets) text += ',' + std::to_string(offset);
  for (const uint64_t size : box.sizes) text += ':' + std::to_string(size);
  return text;
}

}  // namespace

void DistMetadataParts::add(DistMetadata part, const std::string& name) {
  if (whole_.files.empty()) whole_.rest = std::move(part.rest);
  std::vector<uint32_t> files;
  for (std::string& file : part.files) {
    const auto next = static_cast<uint32_t>(whole_.files.size());
    const auto [place, added] = files_.emplace(file, next);
    if (added) whole_.files.push_back(std::move(file));
    files.push_back(place->second);
  }
  for (TensorEntry& tensor : part.tensors) {
    for (Chunk& chunk : tensor.chunks) chunk.region.file = files[chunk.region.file];
    add_tensor(std::move(tensor), name);
  }
  for (ObjectEntry& object : part.objects) {
    object.region->file = files[object.region->file];
    if (!objects_.insert(object.key).second) object.file = name;
    whole_.objects.push_back(std::move(object));
  }
}

void DistMetadataParts::add_tensor(TensorEntry tensor, const std::string& name) {
  const auto [place, added] = tensors_.emplace(tensor.key, whole_.tensors.size());
  if (added) whole_.tensors.push_back({{}, tensor.key, tensor.dtype, tensor.shape, {}});
  TensorEntry& known = whole_.tensors[place->second];
  if (known.dtype != tensor.dtype || known.shape != tensor.shape) {
    throw Error(ErrorCode::Corrupt, {name, std::nullopt, tensor.key},
                "has a different element type or shape in the metadata of an earlier rank");
  }
  for (Chunk& chunk : tensor.chunks) {
    const bool is_new = chunks_.insert(identity(place->second, chunk.box)).second;
    if (is_new) known.chunks.push_back(std::move(chunk));
  }
}

DistMetadata DistMetadataParts::finish() {
  for (const TensorEntry& tensor : whole_.tensors) {
    try {
      check_chunks(tensor);
    } catch (Error& error) {
      throw error.within({.file = rank_metadata_name(0), .key = tensor.key});
    }
  }
  return std::move(whole_);
}

}  // namespace ckpt
