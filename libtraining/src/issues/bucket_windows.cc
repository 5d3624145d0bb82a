#include "issues/bucket_windows.h"

#include <algorithm>

#include "layouts/parts/tensor_parts.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr size_t kPiecesMax = size_t{1} << 22;

// The first dimension from which on a part of both is a run of elements in both of them.
size_t first_dim_of_run(const Box& part, const Box& outer, const Chunk& chunk) {
  const size_t dims = part.sizes.size();
  size_t dim = dims == 0 ? 0 : dims - 1;
  while (dim > 0 && !chunk.view && part.sizes[dim] == outer.sizes[dim] &&
         part.sizes[dim] == chunk.box.sizes[dim]) {
    --dim;
  }
  return dim;
}

// Where a run starts among the elements of `outer`.
uint64_t place_in(const Box& outer, const Box& run) {
  const Extents strides = ckpt::row_major_strides(outer.sizes);
  uint64_t place = 0;
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    place += (run.offsets[dim] - outer.offsets[dim]) * strides[dim];
  }
  return place;
}

Chunk flattened(Chunk run, uint64_t begin) {
  if (run.view) {
    const auto& strides = run.view->strides;
    run.view = std::make_shared<const ckpt::StridedView>(
        ckpt::StridedView{run.view->offset, {strides.empty() ? 1 : strides.back()}});
  }
  run.box = {{begin}, {ckpt::element_count(run.box.sizes)}};
  return run;
}

// A box of a chunk becomes as many pieces as it has runs of elements.
class Flattening {
 public:
  explicit Flattening(const TensorEntry& tensor) : tensor_(tensor) {}

  std::vector<Chunk> run(std::span<const Box> boxes) {
    for (const Box& box : boxes) {
      for (const Chunk& chunk : tensor_.chunks) {
        if (const auto part = ckpt::intersect(chunk.box, box)) add(*part, box, chunk);
      }
      begin_ += ckpt::element_count(box.sizes);
    }
    return std::move(pieces_);
  }

 private:
  void add(const Box& part, const Box& outer, const Chunk& chunk) {
    const size_t dim = first_dim_of_run(part, outer, chunk);
    Box run = part;
    uint64_t count = 1;
    for (size_t i = 0; i < dim; ++i) {
      count *= part.sizes[i];
      run.sizes[i] = 1;
    }
    if (count > kPiecesMax - pieces_.size()) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = tensor_.key},
                  "is stored in too many pieces to be moved in its buffer");
    }
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t rest = i;
      for (size_t d = dim; d-- > 0; rest /= part.sizes[d]) {
        run.offsets[d] = part.offsets[d] + rest % part.sizes[d];
      }
      pieces_.push_back(
          flattened(part_of(chunk, run, tensor_.dtype), begin_ + place_in(outer, run)));
    }
  }

  const TensorEntry& tensor_;
  uint64_t begin_ = 0;  // of the box
  std::vector<Chunk> pieces_;
};

}  // namespace

BucketWindows::BucketWindows(const TrainingState& state) : state_(state), buffers_(state) {
  const ParallelSizes& sizes = state.grid.sizes;
  for (uint32_t optimizer = 0; optimizer < state.chain.size(); ++optimizer) {
    const bool has_experts = buffers_.flat.has_experts(optimizer);
    const uint32_t expert_ranks = has_experts ? sizes.expert_parallel : 1;
    for (uint32_t stage = 0; stage < sizes.pipeline_parallel; ++stage) {
      for (uint32_t expert = 0; expert < expert_ranks; ++expert) {
        for (uint32_t rank = 0; rank < tensor_ranks(sizes, has_experts); ++rank) {
          RankCoordinates at;
          at.pp = stage;
          at.ep = expert;
          at.tp = at.etp = rank;
          add(optimizer, at, rank);
        }
      }
    }
  }
}

void BucketWindows::add(uint32_t optimizer, const RankCoordinates& at, uint32_t tensor_rank) {
  for (const FlatBuffer& buffer : buffers_.flat.of(optimizer, at)) {
    WindowedBuffer windowed_buffer{at, tensor_rank, buffer.layout.unpadded_count(), {}};
    for (size_t i = 0; i < buffer.held.size(); ++i) {
      windowed_buffer.params.push_back(windowed(buffer, i, windowed_buffer));
    }
    std::ranges::sort(windowed_buffer.params, {},
                      [](const WindowedParam& one) { return one.window.begin; });
    if (std::ranges::any_of(windowed_buffer.params, &WindowedParam::is_displaced)) {
      displaced_.push_back(std::move(windowed_buffer));
    }
  }
}

WindowedParam BucketWindows::windowed(const FlatBuffer& buffer, size_t i,
                                      const WindowedBuffer& of) const {
  const HeldEntry& held = buffer.held[i];
  const uint32_t param = state_.model[held.entry].param;
  const FlatPlace& place = buffer.layout.places[i];
  const FlatBucket& bucket = buffer.layout.buckets[place.bucket];
  const bool is_replica = buffers_.placement.tensor_ranks(param) == 1 && of.tensor_rank != 0;
  return {param, place.range, bucket.range.begin - bucket.compact_begin,
          buffers_.placement.is_first_copy(held, of.at.pp) && !is_replica};
}

// Windows do not overlap, so that they are in the order of their ends, too.
std::vector<ElementRange> uncovered(const WindowedBuffer& buffer, const WindowedParam& param) {
  const ElementRange own = param.own();
  std::vector<ElementRange> gaps;
  uint64_t next = own.begin;
  auto other = std::ranges::partition_point(
      buffer.params, [&](const WindowedParam& one) { return one.window.end <= own.begin; });
  for (; other != buffer.params.end() && other->window.begin < own.end; ++other) {
    const uint64_t begin = std::max(other->window.begin, next);
    const uint64_t end = std::min({other->window.end, own.end, buffer.element_count});
    if (!other->is_stored || begin >= end) continue;
    if (begin > next) gaps.push_back({next, begin});
    next = end;
  }
  if (next < own.end) gaps.push_back({next, own.end});
  return gaps;
}

std::vector<Chunk> flat_chunks(const TensorEntry& tensor, std::span<const Box> boxes) {
  return Flattening(tensor).run(boxes);
}

}  // namespace optim
