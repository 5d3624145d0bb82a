// Symmetric products on Hopper: blocks of threads stay and take one tile after the other. A warp
// loads panels of the factor into a ring of stages; two warpgroups multiply what has arrived, and
// write each tile to both sides of the diagonal.

#include <cuda_bf16.h>
#include <sm90.cuh>

#include <kernels/element.h>
#include <kernels/mirrored_product.h>

#include "launch.cuh"

namespace kernels {
namespace {

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

constexpr int kDepth = 64;      // of a stage: rows of 128 bytes, the width of the swizzle
constexpr int kStepDepth = 16;  // of one instruction
constexpr uint32_t kWarps = kWarpgroup / 32;
constexpr int kThreads = 3 * kWarpgroup;  // one that loads, two that multiply
// A piece is 64 rows of F and kDepth of its columns, in shared memory 64 lines of 128 bytes.
constexpr uint32_t kPieceBytes = kHalf * kDepth * 2;
constexpr uint32_t kPanelBytes = 2 * kPieceBytes;
constexpr uint32_t kAtom = 1024;  // eight lines, in which the swizzle repeats
constexpr uint32_t kRingBytes = 192 << 10;

template <TileDeal kDeal>
struct Ring {
  static constexpr int kOwn = kDeal == TileDeal::Pairs ? 2 : 1;  // panels beside the shared one
  static constexpr uint32_t kStageBytes = (kOwn + 1) * kPanelBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;
  // Warps that read a stage: of one warpgroup, or of both.
  static constexpr uint32_t kReaders = kOwn * kWarps;
};
constexpr uint32_t kStagesMost = 6;
constexpr uint32_t kBarrierBytes = sizeof(uint64_t);
constexpr uint32_t kSharedBytes =
    kAtom + kRingBytes + 2 * kStagingBytes + (2 * kStagesMost + 2) * kBarrierBytes;

// Where things lie in shared memory. `turns`: a barrier for each warpgroup, whose phase ends when
// the other one has begun all products of its tile.
struct Places {
  uint32_t stages, full, empty, turns;
  char* staging;
};

__device__ __forceinline__ Places find_places() {
  char* const memory = sm90::dynamic_shared();
  const uint32_t first = sm90::shared_address(memory);
  const uint32_t stages = (first + kAtom - 1) / kAtom * kAtom;
  const uint32_t full = stages + kRingBytes + 2 * kStagingBytes;
  const uint32_t empty = full + kStagesMost * kBarrierBytes;
  const uint32_t turns = empty + kStagesMost * kBarrierBytes;
  return {stages, full, empty, turns, memory + (stages - first) + kRingBytes};
}

// A place in the ring, and the parity of its turn.
template <int kStages>
struct Stage {
  int number = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++number == kStages) {
      number = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void pass_over(int stages) {
    const int turns = (number + stages) / kStages;
    number += stages - turns * kStages;
    parity ^= static_cast<uint32_t>(turns) & 1U;
  }
  __device__ __forceinline__ uint32_t barrier(uint32_t first) const {
    return first + static_cast<uint32_t>(number) * kBarrierBytes;
  }
};

__device__ __forceinline__ int steps_of(const MirroredProduct& p) {
  return static_cast<int>((p.depth + kDepth - 1) / kDepth);
}

// One thread: all panels of all turns of this block.
template <FactorOrder kOrder, TileDeal kDeal>
__device__ __forceinline__ void load_panels(const MirroredProduct& p, const Places& places) {
  using R = Ring<kDeal>;
  const TileTurns turns(p.edge, kDeal);
  const int64_t count = turns.of_matrix() * p.batch;
  const int steps = steps_of(p);
  Stage<R::kStages> stage;
  sm90::prefetch_map(&p.factor);
  for (int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    const TileTurn turn = turns.at(number);
    for (int step = 0; step < steps; ++step, stage.next()) {
      const uint32_t full = stage.barrier(places.full);
      uint32_t to = places.stages + stage.number * R::kStageBytes;
      sm90::barrier_wait(stage.barrier(places.empty), stage.parity ^ 1);
      sm90::barrier_arrive_expect(full, R::kStageBytes);
#pragma unroll
      for (int piece = 0; piece < 2 * (R::kOwn + 1); ++piece, to += kPieceBytes) {
        const int panel = piece < 2 * R::kOwn ? turn.own[piece / 2] : turn.shared;
        const int row = panel * kTile + piece % 2 * kHalf, column = step * kDepth;
        const sm90::TilePlace from = kOrder == FactorOrder::Rows
                                         ? sm90::TilePlace{column, row, turn.matrix}
                                         : sm90::TilePlace{row, column, turn.matrix};
        sm90::load_tile(to, &p.factor, full, from);
      }
    }
  }
}

// The matrix descriptor of an operand in shared memory with a swizzle of 128 bytes: address, bytes
// from 64 rows to the next 64 (of rows that are contiguous it is not used), and bytes from eight
// lines to the next eight; 1 in the last two bits.
__device__ __forceinline__ uint64_t operand(uint32_t address) {
  constexpr uint64_t kFixed =
      uint64_t{kPieceBytes >> 4} << 16 | uint64_t{kAtom >> 4} << 32 | uint64_t{1} << 62;
  return kFixed | (address & 0x3FFFFU) >> 4;
}

// Queues a stage's products: both halves of the own panel times the shared one.
template <FactorOrder kOrder>
__device__ __forceinline__ void multiply_stage(sm90::Sums (&sums)[2], uint32_t own, uint32_t shared,
                                               bool accumulates) {
  constexpr bool kColumns = kOrder == FactorOrder::Columns;
  // To the next 16 columns of F: 32 bytes of a line, or 16 lines.
  constexpr uint32_t kStep = kColumns ? kStepDepth * 128 : kStepDepth * 2;
  sm90::products_fence();
#pragma unroll
  for (uint32_t i = 0; i < kDepth / kStepDepth; ++i) {
    const uint64_t b = operand(shared + i * kStep);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint64_t a = operand(own + half * kPieceBytes + i * kStep);
      sm90::multiply<kColumns>(sums[half], a, b, accumulates || i > 0);
    }
  }
  sm90::products_commit();
}

// By a warp: it has read a stage, or begun its last product.
__device__ __forceinline__ void arrive(uint32_t barrier) {
  if (threadIdx.x % 32 == 0) sm90::barrier_arrive(barrier);
}

// A warpgroup's way through its tiles.
template <TileDeal kDeal>
struct Walk {
  int steps;  // of a tile
  uint32_t group = threadIdx.x / kWarpgroup - 1;
  Stage<Ring<kDeal>::kStages> stage = {};
  uint32_t turn_parity = group ^ 1;
};

// The sums of one tile, over all steps. A stage is free when the next one's products are queued and
// its own are done. Warpgroups that take turns begin one after the other: who waited for a phase of
// a stage before the last one's end would take the phase before it for that.
template <FactorOrder kOrder, TileDeal kDeal>
__device__ __forceinline__ void sum_tile(sm90::Sums (&sums)[2], const Places& places,
                                         Walk<kDeal>& walk) {
  using R = Ring<kDeal>;
  constexpr bool kAlone = kDeal == TileDeal::Alone;
  const uint32_t panel = kAlone ? 0 : walk.group * kPanelBytes;
  auto& stage = walk.stage;
  if (kAlone) {
    sm90::barrier_wait(places.turns + walk.group * kBarrierBytes, walk.turn_parity);
    walk.turn_parity ^= 1;
  }
  uint32_t before = 0;
  for (int step = 0; step < walk.steps; ++step, stage.next()) {
    const uint32_t from = places.stages + stage.number * R::kStageBytes;
    sm90::barrier_wait(stage.barrier(places.full), stage.parity);
    multiply_stage<kOrder>(sums, from + panel, from + R::kOwn * kPanelBytes, step > 0);
    sm90::products_wait<1>();
    if (step > 0) arrive(before);
    before = stage.barrier(places.empty);
  }
  if (kAlone) arrive(places.turns + (walk.group ^ 1) * kBarrierBytes);
  sm90::products_wait<0>();
  sm90::use_sums(sums[0]);
  sm90::use_sums(sums[1]);
  arrive(before);
}

__device__ __forceinline__ void store_tile(const MirroredProduct& p, const Places& places,
                                           const TileTurn& turn, const sm90::Sums (&sums)[2]) {
  const int group = static_cast<int>(threadIdx.x / kWarpgroup) - 1;
  const int own = group == 0 ? turn.own[0] : turn.own[1];
  const int64_t matrix = turn.matrix * p.edge * p.edge;
  const auto* const addend = static_cast<const uint16_t*>(p.addend) + matrix;
  HalfTile h = {reinterpret_cast<uint32_t*>(places.staging + group * kStagingBytes),
                p.beta == 0 ? nullptr : addend,
                static_cast<uint16_t*>(p.result) + matrix,
                p.edge,
                own * kTile,
                turn.shared * kTile,
                own == turn.shared,
                p.alpha,
                p.beta};
#pragma unroll
  for (int half = 0; half < 2; ++half, h.row += kHalf) {
    if (h.row < h.edge) store_half(h, sums[half]);
  }
}

// A warpgroup's tiles: every other turn, or one of each.
template <FactorOrder kOrder, TileDeal kDeal>
__device__ __forceinline__ void multiply_tiles(const MirroredProduct& p, const Places& places) {
  constexpr bool kAlone = kDeal == TileDeal::Alone;
  const TileTurns turns(p.edge, kDeal);
  const int64_t count = turns.of_matrix() * p.batch;
  const int64_t stride = kAlone ? 2 * int64_t{gridDim.x} : int64_t{gridDim.x};
  Walk<kDeal> walk = {steps_of(p)};
  int64_t number = blockIdx.x;
  if (kAlone && walk.group == 1) {
    number += gridDim.x;
    walk.stage.pass_over(walk.steps);
  }
  for (; number < count; number += stride) {
    sm90::Sums sums[2];
    const TileTurn turn = turns.at(number);
    sum_tile<kOrder, kDeal>(sums, places, walk);
    if (kAlone || static_cast<int>(walk.group) < turn.count) store_tile(p, places, turn, sums);
    if (kAlone) walk.stage.pass_over(walk.steps);  // the other warpgroup's
  }
}

template <FactorOrder kOrder, TileDeal kDeal>
__global__ void __launch_bounds__(kThreads, 1)
    mirrored_kernel(const __grid_constant__ MirroredProduct p) {
  using R = Ring<kDeal>;
  const Places places = find_places();
  if (threadIdx.x == 0) {
    Stage<R::kStages> stage;
    sm90::barrier_init(places.turns, kWarps);
    sm90::barrier_init(places.turns + kBarrierBytes, kWarps);
    for (int i = 0; i < R::kStages; ++i, stage.next()) {
      sm90::barrier_init(stage.barrier(places.full), 1);
      sm90::barrier_init(stage.barrier(places.empty), R::kReaders);
    }
    sm90::barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    sm90::give_registers_back<40>();
    if (threadIdx.x == 0) load_panels<kOrder, kDeal>(p, places);
  } else {
    sm90::take_registers<232>();
    multiply_tiles<kOrder, kDeal>(p, places);
  }
}

using Kernel = void (*)(MirroredProduct);

Kernel kernel_of(const MirroredLaunch& launch) {
  const bool is_alone = launch.deal == TileDeal::Alone;
  if (launch.order == FactorOrder::Rows) {
    return is_alone ? mirrored_kernel<FactorOrder::Rows, TileDeal::Alone>
                    : mirrored_kernel<FactorOrder::Rows, TileDeal::Pairs>;
  }
  return is_alone ? mirrored_kernel<FactorOrder::Columns, TileDeal::Alone>
                  : mirrored_kernel<FactorOrder::Columns, TileDeal::Pairs>;
}

}  // namespace

cudaError_t prepare_mirrored(const MirroredLaunch& launch) {
  const Kernel kernel = kernel_of(launch);
  cudaFuncAttributes attributes = {};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kSharedBytes));
}

cudaError_t mirrored_product(const MirroredProduct& product, const MirroredLaunch& launch,
                             cudaStream_t stream) {
  const MirroredProduct& p = product;
  if (!is_mirrored_size(p.edge, p.depth, p.batch) || launch.multiprocessors < 1) {
    return cudaErrorInvalidValue;
  }
  const int64_t turns = TileTurns(p.edge, launch.deal).of_matrix() * p.batch;
  const auto blocks = static_cast<unsigned>(
      turns < launch.multiprocessors ? turns : int64_t{launch.multiprocessors});
  return kernels::launch({blocks, kThreads, stream, kSharedBytes}, kernel_of(launch), p);
}

}  // namespace kernels
