#pragma once

#include <kernels/multi_tensor_update.h>
#include <kernels/update_element.h>

#include "launch.cuh"
#include "packed.cuh"

namespace kernels {

constexpr int kUpdateThreads = 256;
constexpr int kUpdateBlocksPerSm = 4;  // at most 64 registers a thread

// N elements of every tensor of a slot.
template <class Types, int N>
struct StoredVector {
  Packed<N> grad, main, remainder, state[2], model;

  __device__ __forceinline__ void load(const Types& types, const TensorSlot& slot, int64_t first) {
    grad.load(slot.grad, first, bytes_of(types.grad()));
    main.load(slot.main, first, bytes_of(types.main()));
    if (types.main() == ElementType::SplitF32) remainder.load(slot.remainder, first, 2);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      state[s].load(slot.state[s], first, bytes_of(types.state(s)));
    }
  }

  __device__ __forceinline__ StoredElement get(const Types& types, int i) const {
    StoredElement e = {};
    e.grad = grad.get(i, bytes_of(types.grad()));
    e.main = main.get(i, bytes_of(types.main()));
    if (types.main() == ElementType::SplitF32) e.remainder = remainder.get(i, 2);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (types.state(s) != ElementType::None) {
        e.state[s] = state[s].get(i, bytes_of(types.state(s)));
      }
    }
    return e;
  }

  __device__ __forceinline__ void put(const Types& types, int i, const StoredElement& e) {
    main.put(i, bytes_of(types.main()), e.main);
    if (types.main() == ElementType::SplitF32) remainder.put(i, 2, e.remainder);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (types.state(s) != ElementType::None) {
        state[s].put(i, bytes_of(types.state(s)), e.state[s]);
      }
    }
    if (types.model() != ElementType::None) model.put(i, 2, e.model);
  }

  __device__ __forceinline__ void store(const Types& types, const TensorSlot& slot,
                                        int64_t first) const {
    main.store(slot.main, first, bytes_of(types.main()));
    if (types.main() == ElementType::SplitF32) remainder.store(slot.remainder, first, 2);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      state[s].store(slot.state[s], first, bytes_of(types.state(s)));
    }
    if (types.model() != ElementType::None && slot.model != nullptr) {
      model.store(slot.model, first, 2);
    }
  }
};

template <class Types>
__device__ StoredElement load_element(const Types& types, const TensorSlot& slot, int64_t i) {
  StoredElement e = {};
  e.grad = load_one(slot.grad, i, bytes_of(types.grad()));
  e.main = load_one(slot.main, i, bytes_of(types.main()));
  if (types.main() == ElementType::SplitF32) e.remainder = load_one(slot.remainder, i, 2);
  for (int s = 0; s < 2; ++s) {
    if (types.state(s) != ElementType::None) {
      e.state[s] = load_one(slot.state[s], i, bytes_of(types.state(s)));
    }
  }
  return e;
}

template <class Types>
__device__ void store_element(const Types& types, const TensorSlot& slot, int64_t i,
                              const StoredElement& e) {
  store_one(slot.main, i, bytes_of(types.main()), e.main);
  if (types.main() == ElementType::SplitF32) store_one(slot.remainder, i, 2, e.remainder);
  for (int s = 0; s < 2; ++s) {
    if (types.state(s) != ElementType::None) {
      store_one(slot.state[s], i, bytes_of(types.state(s)), e.state[s]);
    }
  }
  if (types.model() != ElementType::None && slot.model != nullptr) {
    store_one(slot.model, i, 2, e.model);
  }
}

__device__ inline TensorFactors factors_of(const TensorTypes& types, const TensorSlot& slot,
                                           const StepControl& control) {
  TensorFactors factors = {control.inverse_loss_scale, control.clip, {1, 1, 1}, {1, 1, 1}};
  const ElementType stored[] = {types.main, types.state[0], types.state[1]};
  for (int i = 0; i < 3; ++i) {
    if (!is_scaled(stored[i])) continue;
    const StateScale scale = *slot.scale[i];
    factors.scale[i] = scale.scale;
    factors.inverse[i] = inverse_of(scale_for(stored[i], float_of_bits(scale.absmax_bits)));
  }
  return factors;
}

struct UpdateValues {
  TensorFactors factors;
  RuleScalars scalars;
};

// What a block does with one chunk: vectors where all tensors are aligned, then single elements.
template <class Formula, class Types>
__device__ void update_chunk(const Types& types, const TensorSlot& slot, const UpdateValues& values,
                             int64_t begin) {
  const auto& [factors, scalars] = values;
  constexpr int N = Types::kVector;
  constexpr int kUnroll = Types::kUnroll;
  constexpr int64_t kStride = int64_t{N} * kUpdateThreads;
  const int64_t end = begin + kChunkElements < slot.count ? begin + kChunkElements : slot.count;
  const int64_t vector_end = slot.is_aligned ? begin + (end - begin) / N * N : begin;
  StoredVector<Types, N> vectors[kUnroll];
  for (int64_t first = begin + int64_t{N} * threadIdx.x; first < vector_end;
       first += kUnroll * kStride) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kStride < vector_end) vectors[u].load(types, slot, first + u * kStride);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kStride >= vector_end) break;
      StoredVector<Types, N> updated;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        StoredElement e = vectors[u].get(types, i);
        update_element<Formula>(types, factors, scalars, e);
        updated.put(types, i, e);
      }
      updated.store(types, slot, first + u * kStride);
    }
  }
  for (int64_t i = vector_end + threadIdx.x; i < end; i += kUpdateThreads) {
    StoredElement e = load_element(types, slot, i);
    update_element<Formula>(types, factors, scalars, e);
    store_element(types, slot, i, e);
  }
}

// Persistent: block b takes chunks b, b + gridDim.x, ...
template <class Formula, class Types>
__global__ void __launch_bounds__(kUpdateThreads, kUpdateBlocksPerSm)
    update_kernel(const TensorTable table, const RuleScalars* scalars, const StepControl* control) {
  if (control->skip != 0) return;
  const Types types = {table.types};
  for (uint32_t c = blockIdx.x; c < table.chunk_count; c += gridDim.x) {
    const Chunk chunk = table.chunks[c];
    const TensorSlot slot = table.slots[chunk.slot];
    const UpdateValues values = {factors_of(table.types, slot, *control), scalars[slot.group]};
    update_chunk<Formula>(types, slot, values, chunk.index * kChunkElements);
  }
}

// The first pass of scaled tables: the same update, of which only the largest new magnitudes are
// kept. A maximum does not depend on the order, so this is deterministic.
template <class Formula>
__global__ void __launch_bounds__(kUpdateThreads)
    absmax_kernel(const TensorTable table, const RuleScalars* scalars, const StepControl* control) {
  if (control->skip != 0) return;
  const AnyTypes types = {table.types};
  for (uint32_t c = blockIdx.x; c < table.chunk_count; c += gridDim.x) {
    const Chunk chunk = table.chunks[c];
    const TensorSlot slot = table.slots[chunk.slot];
    const RuleScalars group = scalars[slot.group];
    TensorFactors factors = factors_of(table.types, slot, *control);
    const int64_t begin = chunk.index * kChunkElements;
    const int64_t end = begin + kChunkElements < slot.count ? begin + kChunkElements : slot.count;
    uint32_t absmax[3] = {0, 0, 0};
    const auto keep = [&](const StoredElement& stored) {
      Element e = decode_element(types, factors, stored);
      Formula::update(group, e);
      const float values[] = {e.param, e.state[0], e.state[1]};
      for (int i = 0; i < 3; ++i) absmax[i] = max(absmax[i], bits_of_float(fabsf(values[i])));
    };
    constexpr int N = AnyTypes::kVector;
    const int64_t vector_end = slot.is_aligned ? begin + (end - begin) / N * N : begin;
    for (int64_t i = begin + N * threadIdx.x; i < vector_end; i += N * kUpdateThreads) {
      StoredVector<AnyTypes, N> vector;
      vector.load(types, slot, i);
#pragma unroll
      for (int j = 0; j < N; ++j) keep(vector.get(types, j));
    }
    for (int64_t i = vector_end + threadIdx.x; i < end; i += kUpdateThreads) {
      keep(load_element(types, slot, i));
    }
    for (int i = 0; i < 3; ++i) {
      const uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, absmax[i]);
      if (slot.scale[i] != nullptr && threadIdx.x % 32 == 0) {
        atomicMax(&slot.scale[i]->absmax_bits, largest);
      }
    }
  }
}

template <class Formula, class... Fixed>
struct Updates;  // the launches of one rule, for its compiled types and for any others

template <class Formula>
struct Updates<Formula> {
  static cudaError_t launch(const UpdateRequest& r, const LaunchShape& shape) {
    return kernels::launch(shape, update_kernel<Formula, AnyTypes>, r.table, r.scalars, r.control);
  }
};

template <class Formula, class First, class... Rest>
struct Updates<Formula, First, Rest...> {
  static cudaError_t launch(const UpdateRequest& r, const LaunchShape& shape) {
    if (!First::fits(r.table.types)) return Updates<Formula, Rest...>::launch(r, shape);
    return kernels::launch(shape, update_kernel<Formula, First>, r.table, r.scalars, r.control);
  }
};

// What each rule's file defines: its update and the pass before it.
using Launch = cudaError_t (*)(const UpdateRequest&, const LaunchShape&);
struct RuleLaunches {
  Launch update, absmax;
};
extern const RuleLaunches kAdamLaunches, kFusedAdamLaunches, kSgdLaunches, kLionLaunches;

template <class Formula>
cudaError_t launch_absmax(const UpdateRequest& r, const LaunchShape& shape) {
  return launch(shape, absmax_kernel<Formula>, r.table, r.scalars, r.control);
}

}  // namespace kernels
