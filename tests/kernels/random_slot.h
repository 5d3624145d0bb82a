#pragma once

#include <kernels/device_step.h>
#include <kernels/multi_tensor_update.h>
#include <kernels/update_element.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/update_twin.h"

namespace kernels {

// The tensors of one parameter in host memory, by their place in TensorSlot.
struct SlotMemory {
  enum Tensor { Grad, Main, Remainder, State0, State1, Model, kTensors };
  std::array<std::vector<unsigned char>, kTensors> tensors;
  std::array<StateScale, 3> scales = {};
  int64_t count = 0;

  TensorSlot slot(const TensorTypes& types) {
    TensorSlot slot = {};
    slot.grad = tensors[Grad].data();
    slot.main = tensors[Main].data();
    slot.remainder = tensors[Remainder].data();
    slot.state[0] = tensors[State0].data();
    slot.state[1] = tensors[State1].data();
    slot.model = types.model == ElementType::None ? nullptr : tensors[Model].data();
    for (int i = 0; i < 3; ++i) {
      if (is_scaled(scaled_type(types, i))) slot.scale[i] = &scales[static_cast<size_t>(i)];
    }
    slot.count = count;
    slot.is_aligned = is_aligned(slot) ? 1 : 0;
    return slot;
  }
};

inline std::vector<unsigned char> encoded(const std::vector<float>& values, ElementType type,
                                          StateScale* scale) {
  float inverse = 1;
  if (scale != nullptr && is_scaled(type)) {
    float absmax = 0;
    for (const float value : values) absmax = std::max(absmax, std::fabs(value));
    scale->scale = scale_for(type, absmax);
    inverse = inverse_of(scale->scale);
  }
  std::vector<unsigned char> bytes(values.size() * static_cast<size_t>(bytes_of(type)));
  for (size_t i = 0; i < values.size() && type != ElementType::None; ++i) {
    store_bits(bytes.data(), static_cast<int64_t>(i), type, encode(type, values[i] * inverse));
  }
  return bytes;
}

// A parameter, a gradient with some zeros, a first state of any sign and a second one that is not
// negative; draw(factor) gives `count` values of either sign.
template <class Draw>
SlotMemory drawn_slot(const TensorTypes& types, int64_t count, Draw&& draw) {
  std::vector<float> grad = draw(0.1F);
  for (size_t i = 0; i < grad.size(); i += 7) grad[i] = 0;
  const std::vector<float> param = draw(1);
  const std::vector<float> first = draw(0.1F);
  std::vector<float> second = draw(0.1F);
  for (float& value : second) value *= value;

  SlotMemory memory;
  memory.count = count;
  memory.tensors[SlotMemory::Grad] = encoded(grad, types.grad, nullptr);
  memory.tensors[SlotMemory::State0] = encoded(first, types.state[0], &memory.scales[1]);
  memory.tensors[SlotMemory::State1] = encoded(second, types.state[1], &memory.scales[2]);
  memory.tensors[SlotMemory::Model].assign(static_cast<size_t>(count * bytes_of(types.model)),
                                           0xEE);
  if (types.main != ElementType::SplitF32) {
    memory.tensors[SlotMemory::Main] = encoded(param, types.main, &memory.scales[0]);
    return memory;
  }
  memory.tensors[SlotMemory::Main].resize(static_cast<size_t>(2 * count));
  memory.tensors[SlotMemory::Remainder].resize(static_cast<size_t>(2 * count));
  for (int64_t i = 0; i < count; ++i) {
    const SplitFloat parts = split(param[static_cast<size_t>(i)]);
    store_bits(memory.tensors[SlotMemory::Main].data(), i, types.main, parts.upper);
    store_bits(memory.tensors[SlotMemory::Remainder].data(), i, types.main, parts.lower);
  }
  return memory;
}

// Random values, the same for the same seed.
inline SlotMemory random_slot(const TensorTypes& types, int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return drawn_slot(types, count, [&](float factor) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = factor * normal(random);
    return values;
  });
}

}  // namespace kernels
