// The way of products.cc backwards: elements as e4m3 and scales of blocks, as transformers'
// integrations/finegrained_fp8.py makes them (Fp8Quantize), and DeepSeek's files have them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/error.h>
#include <ckpt/rounding.h>

#include "base/wide_vectors.h"

namespace ckpt {
namespace {

constexpr float kLargest = 448;  // of e4m3fn

// To nearest, ties to even, of what is not above kLargest. Without branches, for vectors.
CKPT_INLINED uint8_t round_to_e4m3(float value) {
  const auto sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(value) >> 24 & 0x80);
  const float magnitude = std::min(std::fabs(value), kLargest);
  // Denormal ones are multiples of 2^-9, which is the last place of 2^14.
  const uint32_t little = std::bit_cast<uint32_t>(magnitude + 0x1p14F);
  uint32_t normal = std::bit_cast<uint32_t>(magnitude);
  normal += 0x7FFFF + (normal >> 20 & 1);
  normal = (normal >> 20) - ((127 - 7) << 3);
  return sign | static_cast<uint8_t>(magnitude < 0x1p-6F ? little & 0xFF : normal);
}

template <class Word>
CKPT_INLINED Word largest_word(const std::byte* values, size_t count) {
  constexpr Word kMagnitude = static_cast<Word>(~Word{0}) >> 1;
  Word most = 0;
  for (size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, values + i * sizeof word, sizeof word);
    most = std::max<Word>(most, word & kMagnitude);
  }
  return most;
}

// The bits of the largest magnitude; where one is infinite or not a number, of that.
CKPT_WIDE_VECTORS uint32_t largest_bits(DType type, const std::byte* values, size_t count) {
  return type == DType::Float32 ? largest_word<uint32_t>(values, count)
                                : largest_word<uint16_t>(values, count);
}

template <DType kType>
CKPT_INLINED void round_as(const std::byte* values, size_t count, float scale, std::byte* out) {
  constexpr size_t kBytes = kType == DType::Float32 ? 4 : 2;
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::byte>(round_to_e4m3(float_at(kType, values + i * kBytes) * scale));
  }
}

CKPT_WIDE_VECTORS void round_scaled(DType type, std::span<const std::byte> values, float scale,
                                    std::byte* __restrict out) {
  switch (type) {
    case DType::Float32:
      return round_as<DType::Float32>(values.data(), values.size() / 4, scale, out);
    case DType::BFloat16:
      return round_as<DType::BFloat16>(values.data(), values.size() / 2, scale, out);
    default: return round_as<DType::Float16>(values.data(), values.size() / 2, scale, out);
  }
}

// Room for what is read that a thread keeps, and no byte is set twice.
std::span<std::byte> room_for(uint64_t count_bytes) {
  struct Room {
    std::unique_ptr<std::byte[]> bytes;
    uint64_t size = 0;
  };
  thread_local Room room;
  if (room.size < count_bytes) {
    room.bytes = std::make_unique_for_overwrite<std::byte[]>(count_bytes);
    room.size = count_bytes;
  }
  return {room.bytes.get(), count_bytes};
}

// A stripe is the rows of one block. Its scales are known once it was read as a whole, and are kept
// until all were given away: values are read before their scales.
class Blocks {
 public:
  Blocks(ComputedTensor matrix, DType type, Extents shape, std::string key)
      : matrix_(std::move(matrix)),
        type_(type),
        rows_(shape[0]),
        columns_(shape[1]),
        across_((columns_ + kScaledBlock - 1) / kScaledBlock),
        down_((rows_ + kScaledBlock - 1) / kScaledBlock),
        key_(std::move(key)) {}

  void fill_values(uint64_t first, std::span<std::byte> out) const {
    for (uint64_t at = first, end = first + out.size(); at < end;) {
      const uint64_t stripe = at / columns_ / kScaledBlock;
      const uint64_t last = std::min(end, (stripe + 1) * kScaledBlock * columns_);
      Scales scales = known(stripe);
      uint64_t begin = at;
      std::span<const std::byte> values;
      if (scales) {
        values = read(at, last - at);
      } else {
        begin = stripe * kScaledBlock * columns_;
        scales = find(stripe, values);
      }
      for (; at < last;) {
        const uint64_t column = at % columns_, block = column / kScaledBlock;
        const uint64_t behind =
            std::min({last, at - column + columns_, at - column + (block + 1) * kScaledBlock});
        round_scaled(type_,
                     values.subspan((at - begin) * matrix_.element_bytes,
                                    (behind - at) * matrix_.element_bytes),
                     (*scales)[block], out.data() + (at - first));
        at = behind;
      }
    }
  }

  void fill_scales(uint64_t first, std::span<std::byte> out) const {
    const uint64_t count = out.size() / sizeof(float);
    for (uint64_t done = 0; done < count;) {
      const uint64_t stripe = (first + done) / across_;
      Scales scales = known(stripe);
      std::span<const std::byte> values;
      if (!scales) scales = find(stripe, values);
      for (uint64_t i = (first + done) % across_; i < across_ && done < count; ++i, ++done) {
        put_float(1 / (*scales)[i], DType::Float32, out.data() + done * sizeof(float));
      }
    }
    if (first + count != down_ * across_) return;
    const std::lock_guard lock(mutex_);
    known_.clear();
  }

 private:
  // What the values of each block of a stripe are multiplied by.
  using Scales = std::shared_ptr<const std::vector<float>>;

  Scales known(uint64_t stripe) const {
    const std::lock_guard lock(mutex_);
    return known_.empty() ? nullptr : known_[stripe];
  }

  std::span<const std::byte> read(uint64_t first, uint64_t count) const {
    const std::span<std::byte> bytes = room_for(count * matrix_.element_bytes);
    matrix_.fill(first, bytes);
    return bytes;
  }

  // Of a stripe that is read as a whole.
  Scales find(uint64_t stripe, std::span<const std::byte>& values) const {
    const uint64_t first_row = stripe * kScaledBlock;
    const uint64_t count = std::min(kScaledBlock, rows_ - first_row) * columns_;
    values = read(first_row * columns_, count);
    std::vector<uint32_t> most(across_);
    for (uint64_t row = 0; row < count; row += columns_) {
      for (uint64_t block = 0; block < across_; ++block) {
        const uint64_t begin = block * kScaledBlock;
        const uint64_t end = std::min(begin + kScaledBlock, columns_);
        const std::byte* const from = values.data() + (row + begin) * matrix_.element_bytes;
        most[block] = std::max(most[block], largest_bits(type_, from, end - begin));
      }
    }
    auto scales = std::make_shared<std::vector<float>>(across_);
    for (uint64_t block = 0; block < across_; ++block) {
      const float value = float_at(type_, reinterpret_cast<const std::byte*>(&most[block]));
      // In torch's order of 448 / tensor.
      float& scale = (*scales)[block] = value > 0 ? 1 / value * kLargest : 1;
      if (!std::isfinite(value) || scale == 0 || !std::isfinite(scale)) refuse(first_row, values);
    }
    const std::lock_guard lock(mutex_);
    known_.resize(down_);
    known_[stripe] = scales;
    return scales;
  }

  [[noreturn]] void refuse(uint64_t first_row, std::span<const std::byte> values) const {
    const uint64_t count = values.size() / matrix_.element_bytes;
    uint64_t bad = 0;
    for (uint64_t i = 0; i < count; ++i) {
      bad += std::isfinite(float_at(type_, values.data() + i * matrix_.element_bytes)) ? 0 : 1;
    }
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = key_},
                "has no scale for a block of rows " + std::to_string(first_row) + " to " +
                    std::to_string(first_row + count / columns_ - 1) + ", " +
                    (bad > 0 ? std::to_string(bad) + " of whose numbers are not finite"
                             : "whose numbers are too small"));
  }

  ComputedTensor matrix_;
  DType type_;
  uint64_t rows_, columns_, across_, down_;
  std::string key_;
  mutable std::mutex mutex_;
  mutable std::vector<Scales> known_;  // by stripe
};

}  // namespace

BlockQuantized quantized(ComputedTensor matrix, DType type, const Extents& shape, std::string key) {
  if (shape.size() != 2 || !can_round(type)) {
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = std::move(key)},
                "is not a matrix of floating point");
  }
  auto blocks = std::make_shared<const Blocks>(std::move(matrix), type, shape, std::move(key));
  const auto in_blocks = [](uint64_t size) { return (size + kScaledBlock - 1) / kScaledBlock; };
  return {{1, [blocks](uint64_t at, std::span<std::byte> out) { blocks->fill_values(at, out); }},
          {sizeof(float),
           [blocks](uint64_t at, std::span<std::byte> out) { blocks->fill_scales(at, out); }},
          {in_blocks(shape[0]), in_blocks(shape[1])}};
}

}  // namespace ckpt
