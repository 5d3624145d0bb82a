#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace optim {

// State of the Mersenne Twister MT19937 when it is seeded, before the first number is drawn.
// Source: Matsumoto and Nishimura, mt19937ar (2002): init_genrand and init_by_array.
using TwisterState = std::array<uint32_t, 624>;

inline TwisterState seeded_twister(uint32_t seed) {
  TwisterState state;
  state[0] = seed;
  for (uint32_t i = 1; i < state.size(); ++i) {
    state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  }
  return state;
}

// With a key of one number, as Python seeds with an int below 2^32.
inline TwisterState keyed_twister(uint32_t key) {
  constexpr size_t kCount = std::tuple_size_v<TwisterState>;
  TwisterState state = seeded_twister(19650218U);
  size_t i = 1;
  const auto mix = [&](uint32_t factor, uint32_t added) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * factor)) + added;
    if (++i < kCount) return;
    state[0] = state[kCount - 1];
    i = 1;
  };
  for (size_t k = 0; k < kCount; ++k) mix(1664525U, key);
  for (size_t k = 1; k < kCount; ++k) mix(1566083941U, static_cast<uint32_t>(0 - i));
  state[0] = 0x80000000U;
  return state;
}

}  // namespace optim
