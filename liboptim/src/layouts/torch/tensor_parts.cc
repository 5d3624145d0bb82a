// A part becomes a chunk for each block that it holds of the whole.
#include "layouts/torch/tensor_parts.h"

#include <ckpt/error.h>
#include <ckpt/tensor_stream.h>

#include "layouts/torch/repeated_state.h"
#include "sharding/split.h"

namespace optim {
namespace {

using ckpt::Chunk;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Extents;
using ckpt::TensorEntry;

// The chunk of a part's block that starts at `begin` along the split's dimension of the part.
Chunk block_of(const TensorEntry& part, size_t dim, uint64_t begin, ckpt::Box box) {
  Chunk chunk = part.chunks.at(0);
  const bool is_whole = box.sizes == part.shape;
  chunk.box = std::move(box);
  if (is_whole) return chunk;
  const Extents strides = chunk.view ? chunk.view->strides : ckpt::row_major_strides(part.shape);
  if (!chunk.view && dim == 0) {
    chunk.payload_offset_bytes += begin * strides[0] * ckpt::bytes_per_element(part.dtype);
    return chunk;
  }
  const uint64_t start = chunk.view ? chunk.view->offset : 0;
  chunk.view =
      std::make_shared<ckpt::StridedView>(ckpt::StridedView{start + begin * strides[dim], strides});
  return chunk;
}

[[noreturn]] void corrupt(const TensorEntry& part, std::string problem) {
  throw Error(ErrorCode::Corrupt, {part.file, std::nullopt, part.key}, std::move(problem),
              "the rank files may come from different iterations, models or parallel sizes");
}

}  // namespace

void TensorParts::add(const std::string& key, uint32_t tensor_rank, const TensorEntry& tensor) {
  std::vector<Part>& parts = parts_[key];
  if (!parts.empty()) {
    const TensorEntry& first = *parts.front().tensor;
    if (first.shape != tensor.shape || first.dtype != tensor.dtype) {
      corrupt(tensor, "has a different shape or type from '" + ckpt::escaped(first.key) + "' in " +
                          first.file + ", a part of the same tensor");
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
  whole.key = key;
  const uint32_t ranks = shared.sharing.is_split() ? shared.tensor_ranks : 1;
  if (ranks == 1) return std::make_shared<const TensorEntry>(std::move(whole));
  const Split& split = *shared.sharing.split;
  whole.chunks.clear();
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
    for (ckpt::Box& box : boxes_of(whole.shape, split, {rank, ranks})) {
      const uint64_t size = box.sizes[split.dim];
      whole.chunks.push_back(block_of(*of_rank[rank], split.dim, begin, std::move(box)));
      begin += size;
    }
  }
  return std::make_shared<const TensorEntry>(std::move(whole));
}

void TensorParts::compare_copies(const ckpt::Checkpoint& source, const std::string& key,
                                 bool is_copied) const {
  std::map<uint32_t, const TensorEntry*> known;
  for (const Part& part : parts_.at(key)) {
    const auto [first, is_first] = known.emplace(is_copied ? 0 : part.tensor_rank, part.tensor);
    if (is_first || are_equal(*first->second, *part.tensor, source)) continue;
    corrupt(*part.tensor, "differs from '" + ckpt::escaped(first->second->key) + "' in " +
                              first->second->file + ", of which it should be a copy: both are '" +
                              ckpt::escaped(key) + "'");
  }
}

}  // namespace optim
