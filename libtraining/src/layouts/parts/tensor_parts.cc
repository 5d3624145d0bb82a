// A part becomes a chunk for each block that it holds of the whole.
#include "layouts/parts/tensor_parts.h"

#include <ckpt/tensor_stream.h>

#include "model/tensor_names.h"
#include "parallel/rank_grid.h"
#include "state/words.h"

namespace optim {
namespace {

// Whether a box of these sizes is one run of elements in storage of these strides.
bool is_run(const Extents& sizes, const Extents& strides) {
  const Extents dense = ckpt::row_major_strides(sizes);
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] > 1 && strides[dim] != dense[dim]) return false;
  }
  return true;
}

// What a part holds of one of its blocks, which starts at `begin` along the split's dimension of
// the part and has the place `block` in the whole.
struct Block {
  size_t dim;
  uint64_t begin;
  const Box& block;
};
void add_block(const TensorEntry& part, const Block& of, std::vector<Chunk>& chunks) {
  Box own = ckpt::whole(part.shape);
  own.offsets[of.dim] = of.begin;
  own.sizes[of.dim] = of.block.sizes[of.dim];
  for (const Chunk& chunk : part.chunks) {
    const auto box = ckpt::intersect(chunk.box, own);
    if (!box) continue;
    chunks.push_back(part_of(chunk, *box, part.dtype));
    uint64_t& offset = chunks.back().box.offsets[of.dim];
    offset += of.block.offsets[of.dim] - of.begin;
  }
}

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

[[noreturn]] void corrupt_part(const TensorEntry& part, std::string problem) {
  throw Error(ErrorCode::Corrupt, {part.file, std::nullopt, part.key}, std::move(problem),
              "the rank files may come from different iterations, models or parallel sizes");
}

}  // namespace

Chunk part_of(const Chunk& whole, const Box& box, DType dtype) {
  Chunk chunk = whole;
  if (box == whole.box) return chunk;
  chunk.box = box;
  const Extents strides =
      whole.view ? whole.view->strides : ckpt::row_major_strides(whole.box.sizes);
  uint64_t begin = 0;
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    begin += (box.offsets[dim] - whole.box.offsets[dim]) * strides[dim];
  }
  if (!whole.view && is_run(box.sizes, strides)) {
    chunk.payload_offset_bytes += begin * ckpt::bytes_per_element(dtype);
    return chunk;
  }
  const uint64_t start = whole.view ? whole.view->offset : 0;
  chunk.view = std::make_shared<ckpt::StridedView>(ckpt::StridedView{start + begin, strides});
  return chunk;
}

bool are_equal(const TensorEntry& a, const TensorEntry& b, const OpenedTraining& source) {
  return have_one_stated_checksum(a, b) || ckpt::same_bytes(a, source, b, source);
}

void TensorParts::add(const std::string& key, uint32_t tensor_rank, const TensorEntry& tensor) {
  std::vector<Part>& parts = parts_[key];
  if (!parts.empty()) {
    const TensorEntry& first = *parts.front().tensor;
    if (first.shape != tensor.shape || first.dtype != tensor.dtype) {
      corrupt_part(tensor, "has a different shape or type from '" + ckpt::escaped(first.key) +
                               "' in " + first.file + ", a part of the same tensor");
    }
  }
  parts.push_back({tensor_rank, &tensor});
}

const TensorEntry* TensorParts::first(const std::string& key) const {
  const auto found = parts_.find(key);
  return found == parts_.end() ? nullptr : found->second.front().tensor;
}

TensorRef TensorParts::join(const std::string& key, const Shared& shared) const {
  const std::vector<Part>& parts = parts_.at(key);
  TensorEntry whole = *parts.front().tensor;
  whole.file.clear();
  whole.key = std::string(key);  // no longer than it is: a buffer's is
  const uint32_t ranks = shared.sharing.is_split() ? shared.tensor_ranks : 1;
  if (ranks == 1) return std::make_shared<const TensorEntry>(std::move(whole));
  const Split& split = *shared.sharing.split;
  whole.chunks = std::vector<Chunk>();
  whole.chunks.reserve(parts.size());
  whole.shape[split.dim] *= ranks;
  std::vector<const TensorEntry*> of_rank(ranks);
  for (const Part& part : parts) {
    if (of_rank.at(part.tensor_rank) == nullptr) of_rank[part.tensor_rank] = part.tensor;
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (of_rank[rank] == nullptr) {
      throw Error(ErrorCode::Corrupt, {.file = {}, .key = key},
                  "the part of tensor-parallel rank " + std::to_string(rank) + " of " +
                      std::to_string(ranks) + " is missing");
    }
    uint64_t begin = 0;
    for (const Box& box : boxes_of(whole.shape, split, {rank, ranks})) {
      add_block(*of_rank[rank], {split.dim, begin, box}, whole.chunks);
      begin += box.sizes[split.dim];
    }
  }
  return std::make_shared<const TensorEntry>(std::move(whole));
}

void TensorParts::compare_copies(const OpenedTraining& source, const std::string& key,
                                 bool is_copied) const {
  std::map<uint32_t, const TensorEntry*> known;
  for (const Part& part : parts_.at(key)) {
    const auto [first, is_first] = known.emplace(is_copied ? 0 : part.tensor_rank, part.tensor);
    if (is_first || are_equal(*first->second, *part.tensor, source)) continue;
    corrupt_part(*part.tensor, "differs from '" + ckpt::escaped(first->second->key) + "' in " +
                                   first->second->file +
                                   ", of which it should be a copy: both are '" +
                                   ckpt::escaped(key) + "'" +
                                   (part.tensor->key.ends_with(kOutputLayer) && key != kOutputLayer
                                        ? " by args.untie_embeddings_and_output_weights"
                                        : ""));
  }
}

}  // namespace optim
