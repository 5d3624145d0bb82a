#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include <kernels/element.h>
#include <kernels/mirrored_tiles.h>
#include <sm90.cuh>

// What a warpgroup does with the sums of half a tile of a symmetric product: scaled, added to,
// rounded, and stored on both sides of the diagonal.
namespace kernels {

constexpr int kTile = kMirroredTile;
constexpr int kHalf = kTile / 2;  // rows of one instruction, and of what is staged at once
constexpr int kWarpgroup = 128;
constexpr uint32_t kStagingBytes = kHalf * kTile * 2;  // of a warpgroup
constexpr int kWordsPerRow = kTile / 2;
constexpr int kVector = 8;  // elements of 16 bytes

// Half a tile on its way to memory: 64 rows of 128 elements in shared memory. Groups of 16 bytes
// are exchanged so that neither a column of eight rows nor eight rows of one place meet in a bank.
struct HalfTile {
  uint32_t* staging;
  const uint16_t* addend;  // of the matrix; null: none
  uint16_t* result;        // of the matrix
  int64_t edge;
  int row, column;  // of the first element
  bool is_diagonal;
  float alpha, beta;
};

__device__ __forceinline__ uint32_t* staged(const HalfTile& h, int row, int word) {
  return h.staging + row * kWordsPerRow + (word ^ ((row ^ row >> 3) & 7) << 2);
}

__device__ __forceinline__ void sync_warpgroup() {
  if (threadIdx.x < 2 * kWarpgroup) {
    sm90::sync_threads<1, kWarpgroup>();
  } else {
    sm90::sync_threads<2, kWarpgroup>();
  }
}

// Elements first .. end - 1 of eight neighbours.
__device__ __forceinline__ void store_some(uint16_t* to, const uint4& vector, int first, int end) {
  if (first <= 0 && end >= kVector) {
    *reinterpret_cast<uint4*>(to) = vector;
    return;
  }
  const uint32_t words[] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i >= first && i < end) to[i] = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
  }
}

__device__ __forceinline__ void stage_addend(const HalfTile& h) {
  const int thread = threadIdx.x % kWarpgroup, group = thread % 16;
  const int64_t column = h.column + group * kVector;
  if (column >= h.edge) return;
#pragma unroll
  for (int row = thread / 16; row < kHalf; row += kWarpgroup / 16) {
    if (h.row + row >= h.edge) break;
    *reinterpret_cast<uint4*>(staged(h, row, group * 4)) =
        *reinterpret_cast<const uint4*>(h.addend + (h.row + row) * h.edge + column);
  }
}

__device__ __forceinline__ float scaled(const HalfTile& h, float sum, uint32_t addend_bits) {
  const float product = h.alpha * sum;
  return h.addend == nullptr ? product : product + h.beta * float_of_bits(addend_bits);
}

__device__ __forceinline__ void stage_sums(const HalfTile& h, const sm90::Sums& sums) {
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < sm90::kSumsPerThread; i += 2) {
    uint32_t* const word = staged(h, 16 * warp + lane / 4 + i % 4 * 4, i / 4 * 4 + lane % 4);
    const uint32_t addend = h.addend == nullptr ? 0 : *word;
    const uint32_t low =
        __bfloat16_as_ushort(__float2bfloat16_rn(scaled(h, sums.at[i], addend << 16)));
    const uint32_t high =
        __bfloat16_as_ushort(__float2bfloat16_rn(scaled(h, sums.at[i + 1], addend & 0xFFFF0000U)));
    *word = low | high << 16;
  }
}

__device__ __forceinline__ void store_rows(const HalfTile& h) {
  const int thread = threadIdx.x % kWarpgroup, group = thread % 16;
  const int column = h.column + group * kVector;
  if (column >= h.edge) return;
  for (int row = thread / 16; row < kHalf; row += kWarpgroup / 16) {
    const int at = h.row + row;
    if (at >= h.edge) break;
    store_some(h.result + at * h.edge + column,
               *reinterpret_cast<const uint4*>(staged(h, row, group * 4)),
               h.is_diagonal ? at - column : 0, kVector);
  }
}

// Two columns at once, eight rows of each.
__device__ __forceinline__ void store_columns(const HalfTile& h) {
  const int thread = threadIdx.x % kWarpgroup, first = thread % 8 * kVector;
  if (h.row + first >= h.edge) return;
  for (int word = thread / 8; word < kWordsPerRow; word += kWarpgroup / 8) {
    const int column = h.column + 2 * word;
    if (column >= h.edge) break;
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t one = *staged(h, first + 2 * i, word);
      const uint32_t other = *staged(h, first + 2 * i + 1, word);
      low[i] = (one & 0xFFFFU) | other << 16;
      high[i] = one >> 16 | (other & 0xFFFF0000U);
    }
    uint16_t* const to = h.result + column * h.edge + h.row + first;
    const int end = h.is_diagonal ? column - h.row - first : kVector;
    store_some(to, make_uint4(low[0], low[1], low[2], low[3]), 0, end);
    store_some(to + h.edge, make_uint4(high[0], high[1], high[2], high[3]), 0,
               h.is_diagonal ? end + 1 : kVector);
  }
}

// By one warpgroup.
__device__ __forceinline__ void store_half(const HalfTile& h, const sm90::Sums& sums) {
  if (h.addend != nullptr) {
    stage_addend(h);
    sync_warpgroup();
  }
  stage_sums(h, sums);
  sync_warpgroup();
  store_rows(h);
  store_columns(h);
  sync_warpgroup();  // what is staged is read
}

}  // namespace kernels
