#pragma once

#include <cstdint>

#include <kernels/element_type.h>
#include <kernels/host_device.h>

namespace kernels {

// A parameter with all that its update reads and writes: device pointers to `count` contiguous
// elements. Pointers that the table's types do not need are null.
struct TensorSlot {
  const void* grad;
  void* main;       // the parameter or its master; SplitF32: its bf16 half
  void* remainder;  // SplitF32: its int16 half
  void* state[2];
  void* model;           // written only; null: this tensor has no copy
  StateScale* scale[3];  // of main, state[0], state[1]; null where the type is not scaled
  int64_t count;
  uint32_t group;        // index into the RuleScalars
  uint32_t stats_index;  // of its TensorStats; kNoStats: it does not count
  uint32_t first_chunk;  // of its chunks in the table
  uint32_t is_aligned;   // 1: all pointers are multiples of 16 bytes
};

constexpr uint32_t kNoStats = UINT32_MAX;

constexpr int64_t kChunkElements = 16384;

// A block's piece of work: kChunkElements of a tensor, fewer at its end.
struct Chunk {
  uint32_t slot;
  uint32_t index;  // the chunk begins at element index * kChunkElements
};

// A list of tensors in device memory; the host fills it once and copies it there.
struct TensorTable {
  const TensorSlot* slots;
  const Chunk* chunks;
  uint32_t slot_count;
  uint32_t chunk_count;
  TensorTypes types;
};

CKPT_HOST_DEVICE bool is_aligned(const TensorSlot& slot) {
  const void* const pointers[] = {slot.grad,     slot.main,     slot.remainder,
                                  slot.state[0], slot.state[1], slot.model};
  uintptr_t all = 0;
  for (const void* pointer : pointers) all |= reinterpret_cast<uintptr_t>(pointer);
  return all % 16 == 0;
}

CKPT_HOST_DEVICE constexpr int64_t chunks_of(int64_t count) {
  return (count + kChunkElements - 1) / kChunkElements;
}

// Writes the chunks of `slots` in order and says in each slot where its own begin; `chunks` has
// room for the sum of chunks_of(count).
inline void fill_chunks(TensorSlot* slots, uint32_t slot_count, Chunk* chunks) {
  uint32_t filled = 0;
  for (uint32_t slot = 0; slot < slot_count; ++slot) {
    slots[slot].first_chunk = filled;
    const auto count = static_cast<uint32_t>(chunks_of(slots[slot].count));
    for (uint32_t index = 0; index < count; ++index) chunks[filled++] = {slot, index};
  }
}

}  // namespace kernels
