#pragma once

#include <kernels/multi_tensor_update.h>
#include <kernels/update_element.h>

#include "launch.cuh"
#include "traversal.cuh"
#include "values.cuh"
#include "with_types.h"

namespace kernels {

// N elements of what a slot's update reads.
template <int N>
struct StoredVector {
  Packed<N> grad, state[2];
  StoredParam<N> param;
};

// The same in fp32.
template <int N>
struct ElementVector {
  Values<N> grad, param, state[2];

  __device__ __forceinline__ Element get(int i) const {
    return {param.at[i], grad.at[i], {state[0].at[i], state[1].at[i]}};
  }
  __device__ __forceinline__ void put(int i, const Element& e) {
    param.at[i] = e.param;
    state[0].at[i] = e.state[0];
    state[1].at[i] = e.state[1];
  }
};

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

// What a kernel was started with, and the chunk that a block has come to.
struct ChunkOfTable {
  const TensorTable& table;
  const RuleScalars* scalars;
  const Chunk& chunk;
  Piece piece;
};

__device__ __forceinline__ ChunkOfTable chunk_of(const TensorTable& table,
                                                 const RuleScalars* scalars, const Chunk& chunk) {
  const TensorSlot& slot = table.slots[chunk.slot];
  return {table, scalars, chunk, piece_of(chunk, slot.count, slot.is_aligned != 0)};
}

// The tensors of a chunk and its group's scalars. Of types that are compiled in they stay in
// registers, with pointers to the chunk's first elements.
template <class Types>
struct ChunkTensors {
  TensorSlot slot;
  RuleScalars group;

  __device__ __forceinline__ ChunkTensors(const ChunkOfTable& c, const Types& types)
      : slot(c.table.slots[c.chunk.slot]), group(c.scalars[slot.group]) {
    const int64_t begin = c.piece.begin;
    slot.grad = behind(slot.grad, begin, bytes_of(types.grad()));
    slot.main = behind(slot.main, begin, bytes_of(types.main()));
    slot.remainder = behind(slot.remainder, begin, 2);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      slot.state[s] = behind(slot.state[s], begin, bytes_of(types.state(s)));
    }
    slot.model = behind(slot.model, begin, 2);
  }
  __device__ __forceinline__ const TensorSlot& slot_for(int) const { return slot; }
  __device__ __forceinline__ int64_t place(int first) const { return first; }
  // Branches on a group's decay are not taken out of loops, which would be there once for each.
  __device__ __forceinline__ RuleScalars scalars_for(int first) const {
    RuleScalars same = group;
    same.l2 = opaque(group.l2, first);
    same.shrink = opaque(group.shrink, first);
    return same;
  }
};

// Types at run time need the registers: these are read anew for every vector.
template <>
struct ChunkTensors<AnyTypes> {
  const ChunkOfTable& c;

  __device__ __forceinline__ ChunkTensors(const ChunkOfTable& of, const AnyTypes&) : c(of) {}
  __device__ __forceinline__ const TensorSlot& slot_for(int first) const {
    return c.table.slots[opaque(c.chunk.slot, first)];
  }
  __device__ __forceinline__ int64_t place(int first) const { return c.piece.begin + first; }
  __device__ __forceinline__ RuleScalars scalars_for(int first) const {
    return c.scalars[slot_for(first).group];
  }
};

// What a block does with the elements of one chunk: updates them.
template <class Formula, class Types>
struct UpdateWork {
  static constexpr int kVector = Types::kVector, kUnroll = Types::kUnroll;
  static constexpr bool kKeepsOrder = false;
  template <int N>
  using Vector = StoredVector<N>;

  const Types& types;
  const ChunkTensors<Types>& tensors;
  const TensorFactors& factors;

  template <int N>
  __device__ __forceinline__ void load(StoredVector<N>& v, int first) const {
    const TensorSlot& slot = tensors.slot_for(first);
    const int64_t place = tensors.place(first);
    v.grad.load(slot.grad, place, bytes_of(types.grad()));
    v.param.load(types.main(), slot.main, slot.remainder, place);
#pragma unroll
    for (int s = 0; s < 2; ++s) v.state[s].load(slot.state[s], place, bytes_of(types.state(s)));
  }

  template <int N>
  __device__ __forceinline__ void use(StoredVector<N>& v, int first) const {
    ElementVector<N> values = {};
    decode(types.grad(), v.grad, values.grad);
    v.param.get(types.main(), values.param);
#pragma unroll
    for (int s = 0; s < 2; ++s) decode(types.state(s), v.state[s], values.state[s]);
    const RuleScalars group = tensors.scalars_for(first);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Element e = values.get(i);
      update_values<Formula>(types, factors, group, e);
      values.put(i, e);
    }
    store(v, values, first);
  }

  template <int N>
  __device__ __forceinline__ void store(StoredVector<N>& v, ElementVector<N>& values,
                                        int first) const {
    const TensorSlot& slot = tensors.slot_for(first);
    const int64_t place = tensors.place(first);
    store_model(types.model(), values.param, slot.model, place);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Element e = values.get(i);
      remove_factors(types, factors, e);
      values.put(i, e);
    }
    v.param.put(types.main(), values.param);
    v.param.store(types.main(), slot.main, slot.remainder, place);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      encode(types.state(s), values.state[s], v.state[s]);
      v.state[s].store(slot.state[s], place, bytes_of(types.state(s)));
    }
  }
};

template <class Formula, class Types>
__global__ void __launch_bounds__(kChunkThreads, kBlocksPerSm)
    update_kernel(const TensorTable table, const RuleScalars* scalars, const StepControl* control) {
  if (control->skip != 0) return;
  const Types types = {table.types};
  for_chunks(table.chunks, table.chunk_count, [&](uint32_t, const Chunk& chunk) {
    const ChunkOfTable c = chunk_of(table, scalars, chunk);
    const TensorFactors factors = factors_of(table.types, table.slots[chunk.slot], *control);
    const ChunkTensors<Types> tensors(c, types);
    UpdateWork<Formula, Types> work = {types, tensors, factors};
    for_elements(c.piece, work);
  });
}

// Finds the largest new magnitudes of scaled tensors, and reads and computes nothing else: under
// every rule a state's new value depends on the state and the gradient, and on the parameter only
// where decay adds it to the gradient.
template <class Formula, class Types>
struct AbsmaxWork {
  static constexpr int kVector = Types::kGradVector, kUnroll = Types::kGradUnroll;
  static constexpr bool kKeepsOrder = false;
  template <int N>
  using Vector = StoredVector<N>;

  const Types& types;
  const ChunkTensors<Types>& tensors;
  const TensorFactors& factors;
  bool reads_param;
  uint32_t absmax[3];  // bits, of main and states: those of NaN are the largest

  __device__ __forceinline__ bool reads_state(int s) const {
    return is_scaled(types.main()) || is_scaled(types.state(s));
  }

  template <int N>
  __device__ __forceinline__ void load(StoredVector<N>& v, int first) const {
    const TensorSlot& slot = tensors.slot_for(first);
    const int64_t place = tensors.place(first);
    v.grad.load(slot.grad, place, bytes_of(types.grad()));
    if (reads_param) v.param.load(types.main(), slot.main, slot.remainder, place);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (reads_state(s)) v.state[s].load(slot.state[s], place, bytes_of(types.state(s)));
    }
  }

  template <int N>
  __device__ __forceinline__ void use(StoredVector<N>& v, int first) {
    ElementVector<N> values = {};
    decode(types.grad(), v.grad, values.grad);
    if (reads_param) v.param.get(types.main(), values.param);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (reads_state(s)) decode(types.state(s), v.state[s], values.state[s]);
    }
    const RuleScalars group = tensors.scalars_for(first);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Element e = values.get(i);
      update_values<Formula>(types, factors, group, e);
      keep(e);
    }
  }

  __device__ __forceinline__ void keep(const Element& e) {
    if (is_scaled(types.main())) absmax[0] = max(absmax[0], bits_of_float(fabsf(e.param)));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (!is_scaled(types.state(s))) continue;
      absmax[1 + s] = max(absmax[1 + s], bits_of_float(fabsf(e.state[s])));
    }
  }
};

// The first pass of scaled tables. A maximum does not depend on the order, so this is
// deterministic.
template <class Formula, class Types>
__global__ void __launch_bounds__(kChunkThreads, kBlocksPerSm)
    absmax_kernel(const TensorTable table, const RuleScalars* scalars, const StepControl* control) {
  if (control->skip != 0) return;
  const Types types = {table.types};
  for_chunks(table.chunks, table.chunk_count, [&](uint32_t, const Chunk& chunk) {
    const ChunkOfTable c = chunk_of(table, scalars, chunk);
    const TensorSlot& slot = table.slots[chunk.slot];
    const TensorFactors factors = factors_of(table.types, slot, *control);
    const ChunkTensors<Types> tensors(c, types);
    const bool reads_param = is_scaled(types.main()) || scalars[slot.group].l2 != 0;
    AbsmaxWork<Formula, Types> work = {types, tensors, factors, reads_param, {0, 0, 0}};
    for_elements(c.piece, work);
    for (int i = 0; i < 3; ++i) {
      StateScale* const scale = slot.scale[i];
      if (scale == nullptr) continue;
      const uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, work.absmax[i]);
      if (threadIdx.x % 32 == 0) atomicMax(&scale->absmax_bits, largest);
    }
  });
}

// What each rule's file defines: its update and the pass before it.
using Launch = cudaError_t (*)(const UpdateRequest&, const LaunchShape&);
struct RuleLaunches {
  Launch update, absmax;
};
extern const RuleLaunches kAdamLaunches, kFusedAdamLaunches, kSgdLaunches, kLionLaunches;

template <class Formula, class Sets>
cudaError_t launch_update(const UpdateRequest& r, const LaunchShape& shape) {
  return with_types(Sets(), r.table.types, [&](auto set) {
    return launch(shape, update_kernel<Formula, decltype(set)>, r.table, r.scalars, r.control);
  });
}

template <class Formula, class Sets>
cudaError_t launch_absmax(const UpdateRequest& r, const LaunchShape& shape) {
  return with_types(Sets(), r.table.types, [&](auto set) {
    using Set = decltype(set);
    if constexpr (Set::kMayBeScaled) {
      return launch(shape, absmax_kernel<Formula, Set>, r.table, r.scalars, r.control);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

template <class Formula, class Sets>
constexpr RuleLaunches kLaunches = {&launch_update<Formula, Sets>, &launch_absmax<Formula, Sets>};

}  // namespace kernels
