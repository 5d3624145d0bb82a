#include <kernels/muon.h>

#include "launch.cuh"
#include "packed.cuh"
#include "stats_sums.cuh"

namespace kernels {
namespace {

constexpr int kThreads = kStatsThreads;
constexpr int kVector = 4;

// What a block knows about the chunk that it works on.
struct Work {
  MuonMatrix matrix;
  MuonFactors factors;
  int64_t begin, end;
};

__device__ Work work_on(const MuonRequest& r, const Chunk& chunk) {
  Work work;
  work.matrix = r.matrices[chunk.slot];
  const uint32_t group = work.matrix.group;
  work.factors = {r.scalars[group], r.control->inverse_loss_scale, r.control->clip,
                  r.groups[group].nesterov};
  work.begin = chunk.index * kChunkElements;
  const int64_t count = count_of(work.matrix);
  work.end = work.begin + kChunkElements < count ? work.begin + kChunkElements : count;
  return work;
}

// Up to kVector neighbours: of a row where the matrix is aligned, else single elements.
struct Neighbours {
  int64_t first;  // in the matrix
  int64_t place;  // of the first in the weight
  int count;
};

// Calls visit(neighbours) for all elements of the chunk that this thread works on. Threads take the
// same elements whether or not the matrix is aligned, so that sums do not depend on it.
template <class Visit>
__device__ void for_neighbours(const Work& work, Visit&& visit) {
  for (int64_t first = work.begin + kVector * threadIdx.x; first < work.end;
       first += kVector * kThreads) {
    if (work.matrix.is_aligned && first + kVector <= work.end) {
      visit(Neighbours{first, place_in_weight(work.matrix, first), kVector});
      continue;
    }
    const int64_t last = first + kVector < work.end ? first + kVector : work.end;
    for (int64_t i = first; i < last; ++i) {
      visit(Neighbours{i, place_in_weight(work.matrix, i), 1});
    }
  }
}

// Neighbouring elements of one array: kVector of them, or one.
struct Run {
  int64_t place;
  int count;
};

// The values of some neighbours in fp32; zeros behind the last.
struct Values {
  float at[kVector];
};

__device__ Values load(ElementType type, const void* array, int64_t place, int count) {
  Values values = {};
  if (count == 1) {
    values.at[0] = decode(type, load_one(array, place, bytes_of(type)));
  } else if (type == ElementType::F32) {
    const float4 v =
        __ldcs(reinterpret_cast<const float4*>(static_cast<const float*>(array) + place));
    values = {v.x, v.y, v.z, v.w};
  } else {
    const uint2 v =
        __ldcs(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(array) + place));
    values = {decode(type, v.x & 0xFFFFU), decode(type, v.x >> 16), decode(type, v.y & 0xFFFFU),
              decode(type, v.y >> 16)};
  }
  return values;
}

__device__ void store_halves(void* array, int64_t place, int count,
                             const uint32_t (&bits)[kVector]) {
  uint16_t* const to = static_cast<uint16_t*>(array) + place;
  if (count == 1) {
    *to = static_cast<uint16_t>(bits[0]);
  } else {
    __stcs(reinterpret_cast<uint2*>(to),
           make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16));
  }
}

__device__ void store(ElementType type, void* array, Run run, const Values& values) {
  const int64_t place = run.place;
  const int count = run.count;
  if (type == ElementType::F32) {
    float* const to = static_cast<float*>(array) + place;
    if (count == 1) {
      *to = values.at[0];
    } else {
      __stcs(reinterpret_cast<float4*>(to),
             make_float4(values.at[0], values.at[1], values.at[2], values.at[3]));
    }
    return;
  }
  uint32_t bits[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) bits[i] = encode(type, values.at[i]);
  store_halves(array, place, count, bits);
}

__device__ Values load_param(const MuonRequest& r, const MuonMatrix& m, const Neighbours& n) {
  if (r.types.main != ElementType::SplitF32) return load(r.types.main, m.main, n.place, n.count);
  Values values = {};
  if (n.count == 1) {
    values.at[0] = join({load_one(m.main, n.place, 2), load_one(m.remainder, n.place, 2)});
    return values;
  }
  const uint2 upper =
      __ldcs(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(m.main) + n.place));
  const uint2 lower =
      __ldcs(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(m.remainder) + n.place));
  return {join({upper.x & 0xFFFFU, lower.x & 0xFFFFU}), join({upper.x >> 16, lower.x >> 16}),
          join({upper.y & 0xFFFFU, lower.y & 0xFFFFU}), join({upper.y >> 16, lower.y >> 16})};
}

__device__ void store_param(const MuonRequest& r, const MuonMatrix& m, const Neighbours& n,
                            const Values& values) {
  if (r.types.main == ElementType::SplitF32) {
    uint32_t upper[kVector], lower[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const SplitFloat parts = split(values.at[i]);
      upper[i] = parts.upper;
      lower[i] = parts.lower;
    }
    store_halves(m.main, n.place, n.count, upper);
    store_halves(m.remainder, n.place, n.count, lower);
  } else {
    store(r.types.main, m.main, {n.place, n.count}, values);
  }
  if (r.types.model != ElementType::None && m.model != nullptr) {
    store(r.types.model, m.model, {n.place, n.count}, values);
  }
}

// Gradients, and the parameters where decay adds them to gradients.
struct GradValues {
  Values grad = {}, param = {};

  __device__ void load_from(const MuonRequest& r, const Work& work, const Neighbours& n) {
    grad = load(r.types.grad, work.matrix.grad, n.place, n.count);
    if (work.factors.scalars.l2 != 0) param = load_param(r, work.matrix, n);
  }
};

__global__ void __launch_bounds__(kThreads) momentum_kernel(const MuonRequest r) {
  if (r.control->skip != 0) return;
  const ElementType type = r.types.momentum;
  for (uint32_t c = blockIdx.x; c < r.chunk_count; c += gridDim.x) {
    const Work work = work_on(r, r.chunks[c]);
    ElementSums squares = {0, 0};
    for_neighbours(work, [&](const Neighbours& n) {
      GradValues values;
      values.load_from(r, work, n);
      Values momentum = load(type, work.matrix.momentum, n.place, n.count);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        MuonElement e = {values.grad.at[i], values.param.at[i], momentum.at[i]};
        e.momentum = muon_momentum(work.factors.scalars, e.momentum, muon_grad(work.factors, e));
        e.momentum = decode(type, encode(type, e.momentum));
        momentum.at[i] = e.momentum;
        add_element(squares, direction_of(work.factors, e));
      }
      store(type, work.matrix.momentum, {n.place, n.count}, momentum);
    });
    const TensorStats total = add_over_block<kThreads / 32>(stats_of(squares));
    if (threadIdx.x == 0) r.partials[c] = total.square_sum;
  }
}

// A warp per matrix.
__global__ void __launch_bounds__(kThreads) divisor_kernel(const MuonRequest r) {
  const uint32_t m = (blockIdx.x * kThreads + threadIdx.x) / 32;
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

__global__ void __launch_bounds__(kThreads) normalize_kernel(const MuonRequest r) {
  if (r.control->skip != 0) return;
  for (uint32_t c = blockIdx.x; c < r.chunk_count; c += gridDim.x) {
    const Chunk chunk = r.chunks[c];
    const Work work = work_on(r, chunk);
    const float divisor = r.divisors[chunk.slot];
    for_neighbours(work, [&](const Neighbours& n) {
      GradValues values;
      if (work.factors.nesterov) values.load_from(r, work, n);
      Values iterate = load(r.types.momentum, work.matrix.momentum, n.place, n.count);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const MuonElement e = {values.grad.at[i], values.param.at[i], iterate.at[i]};
        iterate.at[i] = direction_of(work.factors, e) / divisor;
      }
      store(r.types.iterate, work.matrix.iterate, {n.first, n.count}, iterate);
    });
  }
}

__global__ void __launch_bounds__(kThreads) apply_kernel(const MuonRequest r) {
  if (r.control->skip != 0) return;
  for (uint32_t c = blockIdx.x; c < r.chunk_count; c += gridDim.x) {
    const Work work = work_on(r, r.chunks[c]);
    for_neighbours(work, [&](const Neighbours& n) {
      Values params = load_param(r, work.matrix, n);
      const Values update = load(r.types.iterate, work.matrix.update, n.first, n.count);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        params.at[i] = next_param(work.factors, work.matrix, params.at[i], update.at[i]);
      }
      store_param(r, work.matrix, n, params);
    });
  }
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
         is(t.iterate, ElementType::F32, ElementType::BF16) &&
         (is(t.model, ElementType::BF16, ElementType::F16) || t.model == ElementType::None);
}

unsigned blocks_for(const MuonRequest& r) {
  const auto chunks = static_cast<int64_t>(r.chunk_count);
  return static_cast<unsigned>(chunks < r.block_count ? chunks : r.block_count);
}

}  // namespace

cudaError_t muon_prepare(const MuonRequest& request, cudaStream_t stream) {
  if (!can_step(request)) return cudaErrorInvalidValue;
  if (request.chunk_count == 0) return cudaSuccess;
  constexpr unsigned kPerBlock = kThreads / 32;
  const LaunchShape per_chunk = {blocks_for(request), kThreads, stream};
  const LaunchShape per_matrix = {(request.matrix_count + kPerBlock - 1) / kPerBlock, kThreads,
                                  stream};
  return launch_in_order([&] { return launch(per_chunk, momentum_kernel, request); },
                         [&] { return launch(per_matrix, divisor_kernel, request); },
                         [&] { return launch(per_chunk, normalize_kernel, request); });
}

cudaError_t muon_finish(const MuonRequest& request, cudaStream_t stream) {
  if (!can_step(request)) return cudaErrorInvalidValue;
  if (request.chunk_count == 0) return cudaSuccess;
  return launch({blocks_for(request), kThreads, stream}, apply_kernel, request);
}

}  // namespace kernels
