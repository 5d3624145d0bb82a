#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace gpu_check {

// What an update moves, without its arithmetic: the yardstick that a kernel's time is compared
// with. Bytes per element of each stream; main and states are read and written.
struct MixBytes {
  int grad, main, remainder, state[2], model;
};
struct MixStreams {
  const void* grad;
  void *main, *remainder, *state[2], *model;
};

// `count` is a multiple of 8. cudaErrorInvalidValue for a mix that is not compiled in.
cudaError_t move_mix(const MixBytes& bytes, const MixStreams& streams, int64_t count,
                     cudaStream_t stream);

// Reads `bytes` (a multiple of 16) and keeps one word per block: what statistics move.
cudaError_t read_only(const void* from, int64_t bytes, uint32_t* sink, cudaStream_t stream);

// a = b (one stream read, one written), or a = b + s c (two read, one written), of floats.
cudaError_t copy(float* a, const float* b, int64_t count, cudaStream_t stream);
struct Triad {
  float* a;
  const float *b, *c;
};
cudaError_t triad(const Triad& streams, int64_t count, cudaStream_t stream);

constexpr int kSinkWords = 4096;

}  // namespace gpu_check
