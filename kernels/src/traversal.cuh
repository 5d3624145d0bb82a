#pragma once

#include <cstdint>
#include <type_traits>

#include <kernels/tensor_table.h>

// How blocks go through the chunks of a table, and their threads through the elements of a chunk:
// the same for updates, largest magnitudes, statistics and Muon.
namespace kernels {

constexpr int kChunkThreads = 256;  // of a block
constexpr int kBlocksPerSm = 4;     // at most 64 registers a thread

// Persistent: block b takes chunks b, b + gridDim.x, ...
template <class Visit>
__device__ __forceinline__ void for_chunks(const Chunk* chunks, uint32_t count, Visit&& visit) {
  for (uint32_t c = blockIdx.x; c < count; c += gridDim.x) visit(c, chunks[c]);
}

// Elements of a tensor that a block takes.
struct Piece {
  int64_t begin;
  int count;
  bool is_aligned;  // vectors of them may be loaded
};

__device__ __forceinline__ Piece piece_of(const Chunk& chunk, int64_t count, bool is_aligned) {
  const int64_t begin = chunk.index * kChunkElements;
  const int64_t left = count - begin;
  return {begin, static_cast<int>(left < kChunkElements ? left : kChunkElements), is_aligned};
}

// An array's elements from this one on; SplitF32: of one half.
template <class Array>
__device__ __forceinline__ Array* behind(Array* array, int64_t begin, int bytes) {
  using Byte = std::conditional_t<std::is_const_v<Array>, const char, char>;
  return array == nullptr ? nullptr : static_cast<Byte*>(array) + begin * bytes;
}

// What is not in vectors: thread t takes runs t, t + kChunkThreads, ... of kRun neighbours.
template <int kRun, class Work>
__device__ __forceinline__ void for_single(const Piece& piece, int taken, Work& work) {
  const int thread = static_cast<int>(threadIdx.x);
  int first = kRun == 1 ? taken + thread : kRun * thread;
  if (kRun > 1 && first < taken) {  // on with the thread's next run behind the vectors
    constexpr int kStride = kRun * kChunkThreads;
    first += (taken - first + kStride - 1) / kStride * kStride;
  }
#pragma unroll 1
  for (; first < piece.count; first += kRun * kChunkThreads) {
    const int last = first + kRun < piece.count ? first + kRun : piece.count;
#pragma unroll 1
    for (int i = first; i < last; ++i) {
      typename Work::template Vector<1> one = {};
      work.load(one, i);
      work.use(one, i);
    }
  }
}

// Deals the elements to the block's threads, Work::kVector neighbours at a time, Work::kUnroll such
// vectors in flight in each thread. Work has a Vector<N>, for N of 1, too; load(vector, first)
// reads elements first .. first + N - 1 behind piece.begin, use(vector, first) does the work. With
// Work::kKeepsOrder a thread takes the same elements in the same order whether or not they are
// aligned, for sums; else neighbouring threads take neighbouring elements where there are no
// vectors.
template <class Work>
__device__ __forceinline__ void for_elements(const Piece& piece, Work& work) {
  constexpr int N = Work::kVector;
  constexpr int kUnroll = Work::kUnroll;
  constexpr int kStride = N * kChunkThreads;
  const int vector_end = piece.is_aligned ? piece.count / N * N : 0;
  for (int first = N * static_cast<int>(threadIdx.x); first < vector_end;
       first += kUnroll * kStride) {
    typename Work::template Vector<N> vectors[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kStride >= vector_end) break;
      work.load(vectors[u], first + u * kStride);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kStride >= vector_end) break;
      work.use(vectors[u], first + u * kStride);
    }
  }
  for_single<Work::kKeepsOrder ? N : 1>(piece, vector_end, work);
}

}  // namespace kernels
