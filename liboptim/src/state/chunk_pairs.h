#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <optim/training_state.h>

// A weight and its master, chunk by chunk: they are compared where both are cut alike, as the ranks
// that wrote them cut both.
namespace optim {

struct ChunkPair {
  const ckpt::Chunk* weight = nullptr;
  const ckpt::Chunk* master = nullptr;
};

// In the order of their boxes. nullopt where the two are not cut alike. `param` has a master.
std::optional<std::vector<ChunkPair>> chunk_pairs(const TrainedParam& param);

// One number for the sums of several chunks, whose order counts.
uint64_t joined_sum(uint64_t sum, uint64_t of_chunk);

}  // namespace optim
