#include <kernels/muon.h>

#include "launch.cuh"
#include "stats_sums.cuh"
#include "traversal.cuh"
#include "values.cuh"
#include "with_types.h"

namespace kernels {
namespace {

static_assert(kStatsThreads == kChunkThreads);

template <ElementType... kTypes>
constexpr int kVectorOf = ((bytes_of(kTypes) == 4) || ...) ? 4 : 8;

// What a block knows about the chunk that it works on.
struct MuonChunk {
  MuonMatrix matrix;
  MuonFactors factors;
  Piece piece;
  uint32_t row, column;  // of a part of a weight: where the chunk begins

  // Where element `first` of the chunk lies in the weight; place_in_weight() in 32 bits, since a
  // chunk is small.
  __device__ __forceinline__ int64_t place(int first) const {
    if (matrix.part_rows == matrix.group_rows) return piece.begin + first;
    const auto columns = static_cast<uint32_t>(matrix.columns);
    const uint32_t behind_row = column + static_cast<uint32_t>(first);
    const uint32_t rows = behind_row / columns;
    const uint32_t in_matrix = row + rows;
    const uint32_t group = in_matrix / matrix.part_rows;
    const int64_t in_weight = int64_t{group} * matrix.group_rows + matrix.first_row +
                              (in_matrix - group * matrix.part_rows);
    return in_weight * columns + (behind_row - rows * columns);
  }
};

__device__ __forceinline__ MuonChunk chunk_of(const MuonRequest& r, const Chunk& chunk) {
  MuonChunk c;
  c.matrix = r.matrices[chunk.slot];
  const uint32_t group = c.matrix.group;
  c.factors = {r.scalars[group], r.control->inverse_loss_scale, r.control->clip,
               r.groups[group].nesterov};
  c.piece = piece_of(chunk, count_of(c.matrix), c.matrix.is_aligned != 0);
  c.row = static_cast<uint32_t>(c.piece.begin / c.matrix.columns);
  c.column = static_cast<uint32_t>(c.piece.begin % c.matrix.columns);
  return c;
}

// Gradients, momentum, and the parameters where decay adds them to gradients.
template <int N>
struct DirectionVector {
  Packed<N> grad, momentum;
  StoredParam<N> param;
  int64_t place;
};

// What Newton-Schulz begins with is computed from: of these types; the parameter's is looked at
// when the program runs, since hardly any decay needs it.
template <ElementType kGrad, ElementType kMomentum>
struct DirectionWork {
  static constexpr bool kKeepsOrder = true;
  template <int N>
  using Vector = DirectionVector<N>;

  const MuonChunk& chunk;
  ElementType main;

  // Without Nesterov the direction is the momentum, and no gradient is needed for it.
  template <int N>
  __device__ __forceinline__ void load_all(DirectionVector<N>& v, int first, bool has_grad) const {
    const MuonMatrix& m = chunk.matrix;
    v.place = chunk.place(first);
    v.momentum.load(m.momentum, v.place, bytes_of(kMomentum));
    if (!has_grad) return;
    v.grad.load(m.grad, v.place, bytes_of(kGrad));
    if (chunk.factors.scalars.l2 != 0) v.param.load(main, m.main, m.remainder, v.place);
  }

  template <int N>
  struct Elements {
    Values<N> grad, param, momentum;
    __device__ __forceinline__ MuonElement get(int i) const {
      return {grad.at[i], param.at[i], momentum.at[i]};
    }
  };
  template <int N>
  __device__ __forceinline__ Elements<N> decoded(const DirectionVector<N>& v, bool has_grad) const {
    Elements<N> e = {};
    decode(kMomentum, v.momentum, e.momentum);
    if (!has_grad) return e;
    decode(kGrad, v.grad, e.grad);
    if (chunk.factors.scalars.l2 != 0) v.param.get(main, e.param);
    return e;
  }
};

template <ElementType kGrad, ElementType kMomentum>
struct MomentumWork : DirectionWork<kGrad, kMomentum> {
  static constexpr int kVector = muon_vector(kGrad, kMomentum), kUnroll = kVector == 4 ? 2 : 1;

  ElementSums squares;

  template <int N>
  __device__ __forceinline__ void load(DirectionVector<N>& v, int first) const {
    this->load_all(v, first, true);
  }
  template <int N>
  __device__ __forceinline__ void use(DirectionVector<N>& v, int) {
    const MuonFactors& factors = this->chunk.factors;
    auto values = this->decoded(v, true);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const MuonElement e = values.get(i);
      values.momentum.at[i] = muon_momentum(factors.scalars, e.momentum, muon_grad(factors, e));
    }
    encode(kMomentum, values.momentum, v.momentum);
    v.momentum.store(this->chunk.matrix.momentum, v.place, bytes_of(kMomentum));
    decode(kMomentum, v.momentum, values.momentum);
#pragma unroll
    for (int i = 0; i < N; ++i) add_element(squares, direction_of(factors, values.get(i)));
  }
};

template <ElementType kGrad, ElementType kMomentum>
__global__ void __launch_bounds__(kChunkThreads, kBlocksPerSm)
    momentum_kernel(const MuonRequest r) {
  if (r.control->skip != 0) return;
  for_chunks(r.chunks, r.chunk_count, [&](uint32_t c, const Chunk& place) {
    const MuonChunk chunk = chunk_of(r, place);
    MomentumWork<kGrad, kMomentum> work = {{chunk, r.types.main}, {0, 0}};
    for_elements(chunk.piece, work);
    const TensorStats total = add_over_block<kChunkThreads / 32>(stats_of(work.squares));
    if (threadIdx.x == 0) r.partials[c] = total.square_sum;
  });
}

// A warp per matrix.
__global__ void __launch_bounds__(kChunkThreads) divisor_kernel(const MuonRequest r) {
  const uint32_t m = (blockIdx.x * kChunkThreads + threadIdx.x) / 32;
  if (m >= r.matrix_count || r.control->skip != 0) return;
  const int64_t count = count_of(r.matrices[m]);
  const auto chunk_count = static_cast<uint32_t>((count + kChunkElements - 1) / kChunkElements);
  TensorStats squares = {0, 0};
  for (uint32_t c = threadIdx.x % 32; c < chunk_count; c += 32) {
    squares.square_sum += r.partials[r.matrices[m].first_chunk + c];
  }
  squares = add_in_tree(squares);
  if (threadIdx.x % 32 == 0) {
    r.divisors[m] = fmaxf(static_cast<float>(sqrt(squares.square_sum)), kMuonNormMin);
  }
}

template <ElementType kGrad, ElementType kMomentum, ElementType kIterate>
struct NormalizeWork : DirectionWork<kGrad, kMomentum> {
  static constexpr int kVector = kVectorOf<kGrad, kMomentum, kIterate>;
  static constexpr int kUnroll = kVector == 4 ? 2 : 1;

  float divisor;

  template <int N>
  __device__ __forceinline__ void load(DirectionVector<N>& v, int first) const {
    this->load_all(v, first, this->chunk.factors.nesterov);
  }
  template <int N>
  __device__ __forceinline__ void use(DirectionVector<N>& v, int first) const {
    const MuonFactors& factors = this->chunk.factors;
    const auto values = this->decoded(v, factors.nesterov);
    Values<N> iterate;
#pragma unroll
    for (int i = 0; i < N; ++i) iterate.at[i] = direction_of(factors, values.get(i)) / divisor;
    Packed<N> stored;
    encode(kIterate, iterate, stored);
    stored.store(this->chunk.matrix.iterate, this->chunk.piece.begin + first, bytes_of(kIterate));
  }
};

template <ElementType kGrad, ElementType kMomentum, ElementType kIterate>
__global__ void __launch_bounds__(kChunkThreads, kBlocksPerSm)
    normalize_kernel(const MuonRequest r) {
  if (r.control->skip != 0) return;
  for_chunks(r.chunks, r.chunk_count, [&](uint32_t, const Chunk& place) {
    const MuonChunk chunk = chunk_of(r, place);
    NormalizeWork<kGrad, kMomentum, kIterate> work = {{chunk, r.types.main},
                                                      r.divisors[place.slot]};
    for_elements(chunk.piece, work);
  });
}

template <int N>
struct ApplyVector {
  StoredParam<N> param;
  Packed<N> update;
  int64_t place;
};

template <ElementType kMain, ElementType kIterate>
struct ApplyWork {
  static constexpr int kVector = kVectorOf<kMain, kIterate>, kUnroll = kVector == 4 ? 2 : 1;
  static constexpr bool kKeepsOrder = false;
  template <int N>
  using Vector = ApplyVector<N>;

  const MuonChunk& chunk;
  ElementType model;

  template <int N>
  __device__ __forceinline__ void load(ApplyVector<N>& v, int first) const {
    const MuonMatrix& m = chunk.matrix;
    v.place = chunk.place(first);
    v.param.load(kMain, m.main, m.remainder, v.place);
    v.update.load(m.update, chunk.piece.begin + first, bytes_of(kIterate));
  }
  template <int N>
  __device__ __forceinline__ void use(ApplyVector<N>& v, int) const {
    const MuonMatrix& m = chunk.matrix;
    Values<N> params, update;
    v.param.get(kMain, params);
    decode(kIterate, v.update, update);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      params.at[i] = next_param(chunk.factors, m, params.at[i], update.at[i]);
    }
    v.param.put(kMain, params);
    v.param.store(kMain, m.main, m.remainder, v.place);
    store_model(model, params, m.model, v.place);
  }
};

template <ElementType kMain, ElementType kIterate>
__global__ void __launch_bounds__(kChunkThreads, kBlocksPerSm) apply_kernel(const MuonRequest r) {
  if (r.control->skip != 0) return;
  for_chunks(r.chunks, r.chunk_count, [&](uint32_t, const Chunk& place) {
    const MuonChunk chunk = chunk_of(r, place);
    ApplyWork<kMain, kIterate> work = {chunk, r.types.model};
    for_elements(chunk.piece, work);
  });
}

using Grads = AnyOf<ElementType::F32, ElementType::BF16, ElementType::F16>;
using Mains = AnyOf<ElementType::F32, ElementType::SplitF32>;
using Momenta = AnyOf<ElementType::F32, ElementType::BF16>;
using Iterates = AnyOf<ElementType::F32, ElementType::BF16, ElementType::F16>;

cudaError_t launch_momentum(const MuonRequest& r, const LaunchShape& shape) {
  return with_types(Grads(), r.types.grad, [&](auto grad) {
    return with_types(Momenta(), r.types.momentum, [&](auto momentum) {
      return launch(shape, momentum_kernel<decltype(grad)::kValue, decltype(momentum)::kValue>, r);
    });
  });
}

cudaError_t launch_normalize(const MuonRequest& r, const LaunchShape& shape) {
  return with_types(Grads(), r.types.grad, [&](auto grad) {
    return with_types(Momenta(), r.types.momentum, [&](auto momentum) {
      return with_types(Iterates(), r.types.iterate, [&](auto iterate) {
        return launch(shape,
                      normalize_kernel<decltype(grad)::kValue, decltype(momentum)::kValue,
                                       decltype(iterate)::kValue>,
                      r);
      });
    });
  });
}

cudaError_t launch_apply(const MuonRequest& r, const LaunchShape& shape) {
  return with_types(Mains(), r.types.main, [&](auto main) {
    return with_types(Iterates(), r.types.iterate, [&](auto iterate) {
      return launch(shape, apply_kernel<decltype(main)::kValue, decltype(iterate)::kValue>, r);
    });
  });
}

bool can_step(const MuonRequest& r) {
  const auto is = [](ElementType type, ElementType a, ElementType b) {
    return type == a || type == b;
  };
  const MuonTypes& t = r.types;
  return r.block_count > 0 &&
         (is(t.grad, ElementType::F32, ElementType::BF16) || t.grad == ElementType::F16) &&
         is(t.main, ElementType::F32, ElementType::SplitF32) &&
         is(t.momentum, ElementType::F32, ElementType::BF16) &&
         (is(t.iterate, ElementType::F32, ElementType::BF16) || t.iterate == ElementType::F16) &&
         (is(t.model, ElementType::BF16, ElementType::F16) || t.model == ElementType::None);
}

}  // namespace

cudaError_t muon_prepare(const MuonRequest& request, cudaStream_t stream) {
  if (!can_step(request)) return cudaErrorInvalidValue;
  if (request.chunk_count == 0) return cudaSuccess;
  constexpr unsigned kPerBlock = kChunkThreads / 32;
  const LaunchShape per_chunk = {blocks_for(request.chunk_count, request.block_count),
                                 kChunkThreads, stream};
  const LaunchShape per_matrix = {(request.matrix_count + kPerBlock - 1) / kPerBlock, kChunkThreads,
                                  stream};
  return launch_in_order([&] { return launch_momentum(request, per_chunk); },
                         [&] { return launch(per_matrix, divisor_kernel, request); },
                         [&] { return launch_normalize(request, per_chunk); });
}

cudaError_t muon_finish(const MuonRequest& request, cudaStream_t stream) {
  if (!can_step(request)) return cudaErrorInvalidValue;
  if (request.chunk_count == 0) return cudaSuccess;
  return launch_apply(
      request, {blocks_for(request.chunk_count, request.block_count), kChunkThreads, stream});
}

}  // namespace kernels
