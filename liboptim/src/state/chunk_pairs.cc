// Chunks of two tensors, paired by their boxes.
#include "state/chunk_pairs.h"

#include <algorithm>

namespace optim {
namespace {

std::vector<const ckpt::Chunk*> in_order(const ckpt::TensorEntry& tensor) {
  std::vector<const ckpt::Chunk*> chunks;
  for (const ckpt::Chunk& chunk : tensor.chunks) chunks.push_back(&chunk);
  std::ranges::sort(chunks, [](const ckpt::Chunk* a, const ckpt::Chunk* b) {
    return std::ranges::lexicographical_compare(a->box.offsets, b->box.offsets);
  });
  return chunks;
}

}  // namespace

std::optional<std::vector<ChunkPair>> chunk_pairs(const TrainedParam& param) {
  const auto weights = in_order(*param.weight), masters = in_order(*param.master);
  if (weights.size() != masters.size()) return std::nullopt;
  std::vector<ChunkPair> pairs;
  for (size_t i = 0; i < weights.size(); ++i) {
    const ckpt::Box &a = weights[i]->box, &b = masters[i]->box;
    if (a.offsets != b.offsets || a.sizes != b.sizes) return std::nullopt;
    pairs.push_back({weights[i], masters[i]});
  }
  return pairs;
}

uint64_t joined_sum(uint64_t sum, uint64_t of_chunk) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  return (sum ^ of_chunk) * kOdd + (sum >> 29);
}

}  // namespace optim
