// Sums of weights and of rounded masters, while both are copied.
#include "state/passing_proof.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include <ckpt/flat_range.h>
#include <ckpt/rounding.h>
#include <ckpt/tensor_stream.h>

#include "state/words.h"

namespace optim {
namespace {

constexpr size_t kComparisonsMax = size_t{1} << 20;  // of two boxes, as verify has it

std::vector<const Chunk*> in_order(const TensorEntry& tensor) {
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

// Weights with fp32 masters.
bool are_compared(const TrainedParam& param) {
  const DType weights = param.weight->dtype;
  return param.master && param.master->dtype == DType::Float32 &&
         param.master->shape == param.weight->shape &&
         (weights == DType::BFloat16 || weights == DType::Float16 || weights == DType::Float32);
}

bool is_plain(const RunOfBox& run) {
  return !run.chunk->view && run.chunk->region.wrapping != ckpt::Wrapping::ZstdTorchSave;
}

constexpr size_t kPieceElements = size_t{1} << 16;
// Of a weight: half a step of fp4 (E2M1) above 1 is a quarter, of fp8 at most a sixteenth.
constexpr float kNearness = 1.0f / 3;

void require_near(const TrainedParam& param, const ckpt::Checkpoint& source,
                  const std::stop_token& stop) {
  std::vector<float> masters(kPieceElements);
  std::vector<uint16_t> weights(kPieceElements);
  ckpt::TensorStream master_stream(*param.master, source), weight_stream(*param.weight, source);
  uint64_t compared = 0, near = 0;
  while (weight_stream.left_bytes() > 0) {
    if (stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
    const size_t count = std::min(kPieceElements, weight_stream.left_bytes() / sizeof(uint16_t));
    master_stream.read(std::as_writable_bytes(std::span(masters).first(count)));
    weight_stream.read(std::as_writable_bytes(std::span(weights).first(count)));
    for (size_t i = 0; i < count; ++i) {
      const float weight = ckpt::widened(param.weight->dtype, weights[i]);
      if (weight == 0) continue;  // what was too small to be kept
      ++compared;
      near +=
          std::isfinite(weight) && std::abs(masters[i] - weight) <= kNearness * std::abs(weight);
    }
  }
  if (near * 2 < compared) refuse_master(source, param);
}

}  // namespace

// Chunks of two tensors, united where they share elements.
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

PassingProof::PassingProof(const FiledState& state, const ckpt::Checkpoint& source)
    : state_(state), source_(source), of_param_(state.params.size()) {
  for (size_t i = 0; i < state.params.size(); ++i) {
    const TrainedParam& param = state.params[i];
    if (are_compared(param) && !param.weight->cast) watch(i);
  }
  watched_.put_in_order();
}

// Chunks that are views with strides are left to prove_rest().
void PassingProof::watch(size_t param) {
  const TrainedParam& of = state_.params[param];
  const auto boxes = compared_boxes(of);
  const bool are_plain = boxes && std::ranges::all_of(*boxes, [](const ComparedBox& box) {
                           return std::ranges::all_of(box.weights, is_plain) &&
                                  std::ranges::all_of(box.masters, is_plain);
                         });
  if (!are_plain) return;
  for (const ComparedBox& box : *boxes) {
    Compared& compared = compared_.emplace_back();
    compared.param = param;
    compared.weight.compared = compared.master.compared = &compared;
    add_side(compared.weight, of.weight->dtype, box.weights);
    add_side(compared.master, DType::Float32, box.masters);
    of_param_[param].push_back(&compared);
  }
}

void PassingProof::add_side(Side& side, DType dtype, const std::vector<RunOfBox>& runs) {
  side.element_bytes = ckpt::bytes_per_element(dtype);
  for (const RunOfBox& run : runs) {
    const uint64_t count_bytes = ckpt::element_count(run.chunk->box.sizes) * side.element_bytes;
    watched_.add(*run.chunk, count_bytes, {&side, run.first * side.element_bytes});
    side.count_bytes += count_bytes;
  }
}

void PassingProof::note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                        std::span<const std::byte> bytes) {
  watched_.for_parts(located, offset_bytes, bytes,
                     [&](const auto& range, uint64_t begin_bytes, auto part) {
                       const auto& [side, start_bytes] = range.of;
                       note_part(*side, start_bytes + (begin_bytes - range.begin_bytes), part);
                     });
}

void PassingProof::note_part(Side& side, uint64_t offset_bytes, std::span<const std::byte> bytes) {
  const uint64_t pair_bytes = side.pair_bytes(), end = offset_bytes + bytes.size();
  const uint64_t whole = std::min(end, (offset_bytes + pair_bytes - 1) / pair_bytes * pair_bytes);
  const uint64_t last =
      end == side.count_bytes ? end : std::max(whole, end / pair_bytes * pair_bytes);
  keep(side, offset_bytes, bytes.first(whole - offset_bytes));
  add(side, whole, bytes.subspan(whole - offset_bytes, last - whole));
  keep(side, last, bytes.subspan(last - offset_bytes));
  const Compared& compared = *side.compared;
  if (!compared.has_passed() || compared.is_equal()) return;
  refuse_master(source_, state_.params[compared.param]);
}

void PassingProof::add(Side& side, uint64_t offset_bytes, std::span<const std::byte> part) const {
  const DType weights = state_.params[side.compared->param].weight->dtype;
  const bool is_master = &side == &side.compared->master;
  const uint64_t first = offset_bytes / side.element_bytes;
  side.sum +=
      is_master ? sum_of_masters(part, first, weights) : sum_of_weights(part, first, weights);
  side.summed_bytes += part.size();  // after the sum: who sees all bytes summed sees their sum
}

void PassingProof::keep(Side& side, uint64_t offset_bytes, std::span<const std::byte> part) {
  if (part.empty()) return;
  const uint64_t pair = offset_bytes / side.pair_bytes(), start = pair * side.pair_bytes();
  const uint64_t whole_bytes = std::min(side.pair_bytes(), side.count_bytes - start);
  const std::scoped_lock lock(mutex_);
  const auto kept = pieces_.try_emplace({&side, pair}).first;
  Piece& piece = kept->second;
  std::ranges::copy(part, piece.bytes.begin() + static_cast<ptrdiff_t>(offset_bytes - start));
  piece.count_bytes += part.size();
  if (piece.count_bytes < whole_bytes) return;
  add(side, start, std::span(piece.bytes).first(whole_bytes));
  pieces_.erase(kept);
}

std::optional<uint64_t> PassingProof::proven(size_t param) const {
  const size_t boxes = of_param_[param].size();
  if (boxes == 0) return std::nullopt;
  uint64_t sum = 0;
  for (size_t i = 0; i < boxes; ++i) {
    const auto of_box = proven_box(param, i);
    if (!of_box) return std::nullopt;
    sum = boxes == 1 ? *of_box : joined_sum(sum, *of_box);
  }
  return sum;
}

std::optional<uint64_t> PassingProof::proven_box(size_t param, size_t box) const {
  if (box >= of_param_[param].size()) return std::nullopt;
  const Compared& compared = *of_param_[param][box];
  if (!compared.has_passed() || !compared.is_equal()) return std::nullopt;
  return compared.weight.sum.load();
}

bool has_compared_masters(const TrainingState& state) {
  return std::ranges::any_of(state.params, are_compared);
}

// Masters beside weights that were rounded to fewer bits than are stored.
void require_near_masters(const TrainingState& state, const ckpt::Checkpoint& source,
                          const std::stop_token& stop) {
  for (const TrainedParam& param : state.params) {
    if (are_compared(param) && param.weight->dtype != DType::Float32)
      require_near(param, source, stop);
  }
}

}  // namespace optim
