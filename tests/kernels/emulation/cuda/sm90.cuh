#pragma once

// In the place of kernels/ptx/sm90.cuh: the same functions by the models of sm90_model.h.

#include <cstdint>
#include <source_location>

#include <cuda.h>

#include "kernels/emulation/device_words.h"
#include "kernels/emulation/sm90_model.h"

namespace sm90 {

using emulation::Sums;
using emulation::TilePlace;
constexpr int kSumsPerThread = emulation::kSumsPerThread;

inline uint32_t shared_address(const void* pointer) { return emulation::shared_address(pointer); }
inline char* dynamic_shared() { return emulation::dynamic_shared(); }

inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  emulation::barrier_init(barrier, arrivals);
}
inline void barrier_init_fence() { emulation::barrier_init_fence(); }
inline void barrier_arrive(uint32_t barrier) { emulation::barrier_arrive(barrier, 0); }
inline void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  emulation::barrier_arrive(barrier, bytes);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity, const Place& place = Place::current()) {
  while (!emulation::barrier_has_ended(barrier, parity)) emulation::wait_for_change(place);
}
template <int kNumber, int kThreads>
void sync_threads(const Place& place = Place::current()) {
  emulation::wait_for_some(kNumber, kThreads, place);
}

inline void prefetch_map(const CUtensorMap*) {}
inline void load_tile(uint32_t to, const CUtensorMap* map, uint32_t barrier, TilePlace from) {
  emulation::load_tile({to, map, barrier, from});
}

inline void products_fence() { emulation::products_fence(); }
inline void products_commit() { emulation::products_commit(); }
template <int kPending>
void products_wait(const Place& place = Place::current()) {
  emulation::products_wait(kPending, place);
}
inline void use_sums(Sums&) {}
template <bool kColumns>
void multiply(Sums& sums, uint64_t a, uint64_t b, bool accumulates) {
  emulation::multiply({&sums, a, b, kColumns, accumulates});
}

template <int kCount>
void give_registers_back() {}
template <int kCount>
void take_registers() {}

}  // namespace sm90
