#include "model/check_catalog.h"

#include <ckpt/error.h>

#include <algorithm>

#include "base/checked_math.h"

namespace ckpt {
namespace {

[[noreturn]] void corrupt(const std::string& key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = key}, std::move(problem));
}

std::string text(const Extents& extents) {
  std::string result = "(";
  for (size_t i = 0; i < extents.size(); ++i) {
    result += (i ? ", " : "") + std::to_string(extents[i]);
  }
  return result + ")";
}

void check_inside(const TensorEntry& tensor, const Box& box) {
  const size_t dims = tensor.shape.size();
  if (box.offsets.size() != dims || box.sizes.size() != dims) {
    corrupt(tensor.key, "a chunk has " + std::to_string(box.offsets.size()) +
                            " dimensions, the tensor " + std::to_string(dims));
  }
  for (size_t i = 0; i < dims; ++i) {
    if (!fits(box.offsets[i], box.sizes[i], tensor.shape[i])) {
      corrupt(tensor.key, "the chunk at " + text(box.offsets) + " of size " + text(box.sizes) +
                              " leaves the tensor of shape " + text(tensor.shape));
    }
  }
}

// Pairs that could overlap lie next to each other once sorted by the first offset; a chunk is
// compared with those whose first dimension it reaches.
void check_disjoint(const TensorEntry& tensor) {
  std::vector<const Box*> boxes;
  for (const Chunk& chunk : tensor.chunks) {
    if (element_count(chunk.box.sizes) > 0) boxes.push_back(&chunk.box);
  }
  std::sort(boxes.begin(), boxes.end(),
            [](const Box* a, const Box* b) { return a->offsets < b->offsets; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size(); ++j) {
      if (tensor.shape.empty() ||
          boxes[j]->offsets[0] < boxes[i]->offsets[0] + boxes[i]->sizes[0]) {
        if (intersect(*boxes[i], *boxes[j])) {
          corrupt(tensor.key, "the chunks at " + text(boxes[i]->offsets) + " and " +
                                  text(boxes[j]->offsets) + " overlap");
        }
      } else {
        break;
      }
    }
  }
}

struct Placed {
  StorageRegion region;
  const std::string* key;
};

}  // namespace

void check_chunks(const TensorEntry& tensor) {
  uint64_t covered = 0;
  const uint64_t total = element_count(tensor.shape);
  for (const Chunk& chunk : tensor.chunks) {
    check_inside(tensor, chunk.box);
    covered += element_count(chunk.box.sizes);
    if (covered > total) break;
  }
  if (covered != total) {
    corrupt(tensor.key, "chunks hold " + std::string(covered > total ? "more than " : "") +
                            std::to_string(std::min(covered, total)) + " of " +
                            std::to_string(total) + " elements");
  }
  check_disjoint(tensor);
}

void check_regions(const Catalog& catalog) {
  std::vector<Placed> placed;
  for (const TensorEntry& tensor : catalog.tensors) {
    for (const Chunk& chunk : tensor.chunks) placed.push_back({chunk.region, &tensor.key});
  }
  for (const ObjectEntry& object : catalog.objects) {
    if (object.region) placed.push_back({*object.region, &object.key});
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.region.file, a.region.bytes.offset_bytes) <
           std::pair(b.region.file, b.region.bytes.offset_bytes);
  });
  for (size_t i = 0; i < placed.size(); ++i) {
    const auto& [region, key] = placed[i];
    const FileEntry& file = catalog.files[region.file];
    if (!fits(region.bytes.offset_bytes, region.bytes.count_bytes, file.count_bytes)) {
      throw Error(ErrorCode::Corrupt, {file.path, region.bytes.offset_bytes, *key},
                  std::to_string(region.bytes.count_bytes) +
                      " bytes are said to be here, the file has " +
                      std::to_string(file.count_bytes));
    }
    if (i > 0 && placed[i - 1].region.file == region.file &&
        placed[i - 1].region.bytes.offset_bytes == region.bytes.offset_bytes &&
        region.bytes.count_bytes > 0 && placed[i - 1].region.bytes.count_bytes > 0) {
      throw Error(ErrorCode::Unsupported, {file.path, region.bytes.offset_bytes, *key},
                  "starts where '" + escaped(*placed[i - 1].key) +
                      "' does, as in DCP's safetensors serialization, which is not read");
    }
    if (i > 0 && placed[i - 1].region.file == region.file &&
        placed[i - 1].region.bytes.end_bytes() > region.bytes.offset_bytes) {
      throw Error(ErrorCode::Corrupt, {file.path, region.bytes.offset_bytes, *key},
                  "shares bytes with '" + escaped(*placed[i - 1].key) + "'");
    }
  }
}

}  // namespace ckpt
