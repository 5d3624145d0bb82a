// Chunks of two tensors, united where they share elements.
#include "state/compared_boxes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ckpt/flat_range.h>

namespace optim {
namespace {

using ckpt::Box;
using ckpt::Chunk;

constexpr size_t kComparisonsMax = size_t{1} << 20;  // of two boxes, as verify has it

std::vector<const Chunk*> in_order(const ckpt::TensorEntry& tensor) {
  std::vector<const Chunk*> chunks;
  for (const Chunk& chunk : tensor.chunks) chunks.push_back(&chunk);
  std::ranges::sort(chunks, [](const Chunk* a, const Chunk* b) {
    return std::ranges::lexicographical_compare(a->box.offsets, b->box.offsets);
  });
  return chunks;
}

// The smallest box around both.
Box around(Box a, const Box& b) {
  for (size_t d = 0; d < a.offsets.size(); ++d) {
    const uint64_t end = std::max(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    a.offsets[d] = std::min(a.offsets[d], b.offsets[d]);
    a.sizes[d] = end - a.offsets[d];
  }
  return a;
}

// The first of each set of chunks that share elements; all of one tensor before those of the other.
std::vector<size_t> sets_of(const std::vector<const Chunk*>& weights,
                            const std::vector<const Chunk*>& masters) {
  std::vector<size_t> firsts(weights.size() + masters.size());
  std::iota(firsts.begin(), firsts.end(), size_t{0});
  const auto first_of = [&](size_t chunk) {
    while (firsts[chunk] != chunk) chunk = firsts[chunk] = firsts[firsts[chunk]];
    return chunk;
  };
  for (size_t w = 0; w < weights.size(); ++w) {
    for (size_t m = 0; m < masters.size(); ++m) {
      if (!ckpt::intersect(weights[w]->box, masters[m]->box)) continue;
      const auto [low, high] = std::minmax({first_of(w), first_of(weights.size() + m)});
      firsts[high] = low;
    }
  }
  for (size_t chunk = 0; chunk < firsts.size(); ++chunk) firsts[chunk] = first_of(chunk);
  return firsts;
}

// False where a chunk is not a run of the box, or they are not all of it.
bool find_runs(const Box& box, std::vector<RunOfBox>& runs) {
  uint64_t elements = 0;
  for (RunOfBox& run : runs) {
    const auto first = ckpt::first_of_run(box, run.chunk->box);
    if (!first) return false;
    run.first = *first;
    elements += ckpt::element_count(run.chunk->box.sizes);
  }
  return elements == ckpt::element_count(box.sizes);
}

std::optional<std::vector<ComparedBox>> united(const std::vector<const Chunk*>& weights,
                                               const std::vector<const Chunk*>& masters) {
  if (weights.empty() || masters.size() > kComparisonsMax / weights.size()) return std::nullopt;
  const std::vector<size_t> firsts = sets_of(weights, masters);
  std::vector<ComparedBox> boxes;
  std::vector<size_t> box_of(firsts.size());
  for (size_t i = 0; i < firsts.size(); ++i) {
    const bool is_weight = i < weights.size();
    const Chunk* const chunk = is_weight ? weights[i] : masters[i - weights.size()];
    if (firsts[i] == i) {
      box_of[i] = boxes.size();
      boxes.push_back({chunk->box, {}, {}});
    }
    ComparedBox& compared = boxes[box_of[firsts[i]]];
    compared.box = around(std::move(compared.box), chunk->box);
    (is_weight ? compared.weights : compared.masters).push_back({chunk, 0});
  }
  for (ComparedBox& compared : boxes) {
    if (!find_runs(compared.box, compared.weights) || !find_runs(compared.box, compared.masters)) {
      return std::nullopt;
    }
  }
  return boxes;
}

}  // namespace

std::optional<std::vector<ComparedBox>> compared_boxes(const TrainedParam& param) {
  const auto weights = in_order(*param.weight), masters = in_order(*param.master);
  const auto box_of = [](const Chunk* chunk) -> const Box& { return chunk->box; };
  if (!std::ranges::equal(weights, masters, {}, box_of, box_of)) return united(weights, masters);
  std::vector<ComparedBox> boxes;
  for (size_t i = 0; i < weights.size(); ++i) {
    boxes.push_back({weights[i]->box, {{weights[i], 0}}, {{masters[i], 0}}});
  }
  return boxes;
}

uint64_t joined_sum(uint64_t sum, uint64_t of_box) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  return (sum ^ of_box) * kOdd + (sum >> 29);
}

}  // namespace optim
