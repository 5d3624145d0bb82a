#include "format/torch_dist/dist_safetensors.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <ckpt/error.h>

#include "base/text_map.h"
#include "format/safetensors/safetensors_header.h"

namespace ckpt {
namespace {

constexpr size_t kHeadBytes = 9;  // the header's length and its first byte

// Where the tensors of a file start, if they all start in one place, as in a blob.
std::vector<std::optional<uint64_t>> common_starts(const Catalog& catalog) {
  std::vector<std::optional<uint64_t>> starts(catalog.files.size());
  std::vector<bool> differ(catalog.files.size());
  size_t may_be_common = starts.size();
  const auto note_difference = [&](uint32_t file) {
    if (!differ[file]) --may_be_common;
    differ[file] = true;
  };
  for (const TensorEntry& tensor : catalog.tensors) {
    if (may_be_common == 0) break;
    for (const Chunk& chunk : tensor.chunks) {
      const StorageRegion& region = chunk.region;
      auto& start = starts[region.file];
      if (start && *start != region.bytes.offset_bytes) note_difference(region.file);
      if (region.wrapping != Wrapping::TorchSave) note_difference(region.file);
      start = region.bytes.offset_bytes;
    }
  }
  for (size_t file = 0; file < starts.size(); ++file) {
    if (differ[file]) starts[file].reset();
  }
  return starts;
}

// Where JSON starts in a blob, an archive has its compression method, 0.
bool is_blob(const RandomAccess& file, uint64_t start_bytes) {
  if (start_bytes >= file.size_bytes() || file.size_bytes() - start_bytes < kHeadBytes) {
    return false;
  }
  std::byte head[kHeadBytes];
  file.read_at(start_bytes, head);
  return head[kHeadBytes - 1] == std::byte{'{'};
}

using Blob = TextMap<TensorEntry>;

Blob read_blob(const RandomAccess& file, uint32_t file_index, uint64_t start_bytes,
               const Limits& limits) {
  Blob blob;
  const ByteRange bytes{start_bytes, file.size_bytes() - start_bytes};
  for (TensorEntry& part : read_safetensors_header(file, file_index, bytes, limits).tensors) {
    std::string key = part.key;
    blob.emplace(std::move(key), std::move(part));
  }
  return blob;
}

void resolve(const TensorEntry& tensor, Blob& blob, const std::string& file, Chunk& chunk) {
  const Where where{file, chunk.region.bytes.offset_bytes, tensor.key};
  const auto found = blob.find(tensor.key);
  if (found == blob.end()) {
    throw Error(ErrorCode::Corrupt, where, "is not in the file's safetensors blob");
  }
  const TensorEntry& part = found->second;
  const ByteRange bytes = part.chunks[0].region.bytes;
  if (part.dtype != tensor.dtype || part.shape != chunk.box.sizes ||
      bytes.count_bytes != chunk.region.bytes.count_bytes) {
    throw Error(ErrorCode::Corrupt, where,
                "the file's safetensors blob and .metadata disagree on the element type or shape "
                "of this key");
  }
  chunk.region.bytes = bytes;
  chunk.region.wrapping = Wrapping::None;
  blob.erase(found);
}

}  // namespace

bool resolve_safetensors_blobs(const Location& location, const Limits& limits, Catalog& catalog) {
  const auto starts = common_starts(catalog);
  std::vector<std::optional<Blob>> blobs(starts.size());
  for (uint32_t f = 0; f < starts.size(); ++f) {
    if (!starts[f] || !catalog.files[f].lack.empty()) continue;
    const std::string& path = catalog.files[f].path;
    const auto file = open_source(location, path, path, limits);
    if (is_blob(*file, *starts[f])) blobs[f] = read_blob(*file, f, *starts[f], limits);
  }
  const auto is_there = [](const std::optional<Blob>& blob) { return blob.has_value(); };
  if (std::ranges::none_of(blobs, is_there)) return false;
  for (TensorEntry& tensor : catalog.tensors) {
    for (Chunk& chunk : tensor.chunks) {
      auto& blob = blobs[chunk.region.file];
      if (blob) resolve(tensor, *blob, catalog.files[chunk.region.file].path, chunk);
    }
  }
  for (uint32_t f = 0; f < blobs.size(); ++f) {
    if (!blobs[f] || blobs[f]->empty()) continue;
    throw Error(ErrorCode::Corrupt, {catalog.files[f].path, *starts[f], blobs[f]->begin()->first},
                "is in the safetensors blob but not in .metadata");
  }
  return true;
}

}  // namespace ckpt
