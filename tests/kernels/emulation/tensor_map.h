#pragma once

#include <cstdint>
#include <cstring>

#include <cuda.h>

// What the driver's tensor maps hold, for the models.
namespace emulation {

struct TensorMap {
  const char* memory;
  uint64_t lengths[3];  // in elements of two bytes
  uint64_t strides[2];  // in bytes, of all but the first
  uint32_t box[3];
  uint32_t is_swizzled;
  uint32_t is_known;
};
constexpr uint32_t kKnownMap = 0x7E5D;
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

inline TensorMap tensor_map_of(const CUtensorMap& map) {
  TensorMap made = {};
  std::memcpy(&made, &map, sizeof made);
  return made;
}

inline int64_t box_bytes(const TensorMap& map) {
  return int64_t{2} * map.box[0] * map.box[1] * map.box[2];
}

struct ElementPlace {
  int64_t x, y, z;
};

// Zero outside of the tensor.
inline uint16_t element_of(const TensorMap& map, ElementPlace place) {
  const int64_t at[] = {place.x, place.y, place.z};
  for (int i = 0; i < 3; ++i) {
    if (at[i] < 0 || at[i] >= static_cast<int64_t>(map.lengths[i])) return 0;
  }
  uint16_t bits = 0;
  std::memcpy(&bits,
              map.memory + 2 * place.x + static_cast<int64_t>(map.strides[0]) * place.y +
                  static_cast<int64_t>(map.strides[1]) * place.z,
              sizeof bits);
  return bits;
}

}  // namespace emulation
