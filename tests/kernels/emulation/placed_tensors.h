#pragma once

#include <kernels/multi_tensor_update.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/emulation/grid.h"
#include "kernels/random_slot.h"
#include "support/sanitizer.h"

namespace kernels {

// Bytes that begin `skew` behind a multiple of 16 and end where their memory ends: AddressSanitizer
// sees what goes past; without it some guard bytes show what was written there.
class PlacedTensor {
 public:
  PlacedTensor(const std::vector<unsigned char>& bytes, size_t skew)
      : skew_(skew), size_(bytes.size()), memory_(new unsigned char[skew + size_ + kGuardBytes]) {
    std::fill_n(memory_.get(), skew + size_ + kGuardBytes, kGuard);
    std::copy(bytes.begin(), bytes.end(), data());
  }
  unsigned char* data() const { return memory_.get() + skew_; }
  size_t size() const { return size_; }
  bool guards_are_whole() const {
    const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
    return std::all_of(memory_.get(), data(), is_guard) &&
           std::all_of(data() + size_, data() + size_ + kGuardBytes, is_guard);
  }

 private:
  static constexpr size_t kGuardBytes = test::kIsSanitized ? 0 : 32;
  static constexpr unsigned char kGuard = 0xA5;
  size_t skew_, size_;
  std::unique_ptr<unsigned char[]> memory_;
};

inline std::vector<unsigned char> random_elements(ElementType type, int64_t count,
                                                  std::mt19937& random) {
  std::normal_distribution<float> normal(0, 0.1F);
  std::vector<unsigned char> elements(static_cast<size_t>(count * bytes_of(type)));
  for (int64_t i = 0; i < count; ++i) {
    store_bits(elements.data(), i, type, encode(type, normal(random)));
  }
  return elements;
}

// Equal bits, or both NaN: which NaN an operation gives is the processor's choice.
inline bool same_elements(ElementType type, const unsigned char* a, const unsigned char* b,
                          int64_t count) {
  if (type == ElementType::None || count == 0) return true;
  if (std::memcmp(a, b, static_cast<size_t>(count * bytes_of(type))) == 0) return true;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t x = stored_bits(a, i, type), y = stored_bits(b, i, type);
    if (x != y && !(std::isnan(decode(type, x)) && std::isnan(decode(type, y)))) return false;
  }
  return true;
}

// The same of two halves.
inline bool same_split(std::array<const unsigned char*, 2> a, std::array<const unsigned char*, 2> b,
                       int64_t count) {
  const auto joined = [](std::array<const unsigned char*, 2> halves, int64_t i) {
    const ElementType type = ElementType::SplitF32;
    return join({stored_bits(halves[0], i, type), stored_bits(halves[1], i, type)});
  };
  for (int64_t i = 0; i < count; ++i) {
    const float x = joined(a, i), y = joined(b, i);
    if (bits_of_float(x) != bits_of_float(y) && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

inline ElementType type_of(const TensorTypes& types, int tensor) {
  switch (tensor) {
    case SlotMemory::Grad: return types.grad;
    case SlotMemory::Main: return types.main;
    case SlotMemory::Remainder:
      return types.main == ElementType::SplitF32 ? types.main : ElementType::None;
    case SlotMemory::State0: return types.state[0];
    case SlotMemory::State1: return types.state[1];
    default: return types.model;
  }
}

// One parameter's tensors as the kernels find them, copied out of `memory`. Each lies by chance on
// a multiple of 16 bytes or elsewhere, as `misaligned` says for all of them: 0, none; 1, some.
class PlacedSlot {
 public:
  PlacedSlot(const SlotMemory& memory, const TensorTypes& types, std::mt19937& random,
             bool misaligned)
      : types_(types), scales_(memory.scales), count_(memory.count) {
    for (int t = 0; t < SlotMemory::kTensors; ++t) {
      const auto bytes = static_cast<unsigned>(std::max(bytes_of(type_of(types, t)), 1));
      const size_t skew = misaligned && random() % 2 == 0 ? random() % (16 / bytes) * bytes : 0;
      tensors_.emplace_back(memory.tensors[static_cast<size_t>(t)], skew);
    }
  }

  TensorSlot slot() {
    const auto place = [&](int t) -> unsigned char* {
      return type_of(types_, t) == ElementType::None ? nullptr
                                                     : tensors_[static_cast<size_t>(t)].data();
    };
    TensorSlot slot = {};
    slot.grad = place(SlotMemory::Grad);
    slot.main = place(SlotMemory::Main);
    slot.remainder = place(SlotMemory::Remainder);
    slot.state[0] = place(SlotMemory::State0);
    slot.state[1] = place(SlotMemory::State1);
    slot.model = place(SlotMemory::Model);
    for (int i = 0; i < 3; ++i) {
      if (is_scaled(scaled_type(types_, i))) slot.scale[i] = &scales_[static_cast<size_t>(i)];
    }
    slot.count = count_;
    slot.is_aligned = is_aligned(slot) ? 1 : 0;
    return slot;
  }

  // Empty, or what differs.
  std::string difference(const SlotMemory& expected) const {
    for (int t = 0; t < SlotMemory::kTensors; ++t) {
      const PlacedTensor& found = tensors_[static_cast<size_t>(t)];
      const auto& wanted = expected.tensors[static_cast<size_t>(t)];
      const std::string name = "tensor " + std::to_string(t);
      if (!found.guards_are_whole()) return name + " was written beside";
      const ElementType type = type_of(types_, t);
      if (type != ElementType::SplitF32 &&
          !same_elements(type, found.data(), wanted.data(), count_)) {
        return name + " differs";
      }
    }
    const auto at = [this](int t) { return tensors_[static_cast<size_t>(t)].data(); };
    if (types_.main == ElementType::SplitF32 &&
        !same_split({at(SlotMemory::Main), at(SlotMemory::Remainder)},
                    {expected.tensors[SlotMemory::Main].data(),
                     expected.tensors[SlotMemory::Remainder].data()},
                    count_)) {
      return "the master differs";
    }
    for (size_t i = 0; i < scales_.size(); ++i) {
      const float found = scales_[i].scale, wanted = expected.scales[i].scale;
      if (found != wanted && !(std::isnan(found) && std::isnan(wanted))) return "a scale differs";
      if (scales_[i].absmax_bits != 0) return "a magnitude is left over";
    }
    return "";
  }

 private:
  TensorTypes types_;
  std::vector<PlacedTensor> tensors_;
  std::array<StateScale, 3> scales_;
  int64_t count_;
};

// As random_slot(), from values that were drawn once: thousands of cases need them.
inline SlotMemory slot_of_pool(const TensorTypes& types, int64_t count, std::mt19937& random) {
  static const std::vector<float> pool = [] {
    std::mt19937 first(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(8191);
    for (float& value : values) value = normal(first);
    return values;
  }();
  return drawn_slot(types, count, [&](float factor) {
    size_t place = random() % pool.size();
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = factor * pool[place++ % pool.size()];
    return values;
  });
}

inline int below(unsigned end, std::mt19937& random) { return static_cast<int>(random() % end); }

inline void draw_order(std::mt19937& random) {
  emulation::set_order(static_cast<emulation::Order>(below(4, random)), random());
}

inline int drawn_block_count(std::mt19937& random) {
  constexpr int kCounts[] = {1, 1, 2, 3, 5, 100};
  return kCounts[random() % 6];
}

// Sizes around those of vectors, of what a block takes at once, and none.
inline int64_t drawn_count(std::mt19937& random) {
  constexpr int64_t kCounts[] = {0,    1,    2,    3,    4,    5,    7,    8,    9,    31,  32,
                                 33,   63,   100,  255,  256,  257,  511,  512,  513,  777, 1021,
                                 1023, 1024, 1025, 1500, 2047, 2048, 2049, 2055, 2500, 4097};
  return kCounts[random() % (random() % 2 == 0 ? 14 : std::size(kCounts))];
}

}  // namespace kernels
