#include "layouts/torch_dist/rows_in_store.h"

#include <utility>

#include "layouts/parts/tensor_parts.h"

namespace optim {

StoredBoxes stored_boxes(const ckpt::Extents& shape, TensorRank rank) {
  StoredBoxes boxes;
  boxes.in_store = blocks_of(shape, two_halves(0, shape[0]), rank);
  boxes.of_ranks = boxes.in_store;
  uint64_t begin = shape[0] / rank.count * rank.index;
  for (ckpt::Box& box : boxes.of_ranks) {
    box.offsets[0] = begin;
    begin += box.sizes[0];
  }
  return boxes;
}

TensorRef rows_of_ranks(const TensorRef& stored, uint32_t ranks) {
  const uint64_t rows = stored->shape.empty() ? 0 : stored->shape[0];
  if (ranks == 1 || rows % (uint64_t{2} * ranks) != 0) return stored;
  ckpt::TensorEntry ordered = *stored;
  ordered.chunks = std::vector<ckpt::Chunk>();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const auto [of_ranks, in_store] = stored_boxes(stored->shape, {rank, ranks});
    for (size_t half = 0; half < in_store.size(); ++half) {
      for (const ckpt::Chunk& chunk : stored->chunks) {
        const auto box = ckpt::intersect(chunk.box, in_store[half]);
        if (!box) continue;
        ordered.chunks.push_back(part_of(chunk, *box, stored->dtype));
        uint64_t& row = ordered.chunks.back().box.offsets[0];
        row = row - in_store[half].offsets[0] + of_ranks[half].offsets[0];
      }
    }
  }
  return std::make_shared<const ckpt::TensorEntry>(std::move(ordered));
}

}  // namespace optim
