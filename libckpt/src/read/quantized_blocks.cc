// The way of products.cc backwards: elements as e4m3 and scales of blocks, as transformers'
// integrations/finegrained_fp8.py makes them (Fp8Quantize), and DeepSeek's files have them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/error.h>
#include <ckpt/rounding.h>

namespace ckpt {
namespace {

constexpr float kLargest = 448;  // of e4m3fn

// To nearest, ties to even, of what is not above kLargest. Without branches, for vectors.
uint8_t round_to_e4m3(float value) {
  const auto sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(value) >> 24 & 0x80);
  const float magnitude = std::min(std::fabs(value), kLargest);
  // Denormal ones are multiples of 2^-9, which is the last place of 2^14.
  const uint32_t little = std::bit_cast<uint32_t>(magnitude + 0x1p14F);
  uint32_t normal = std::bit_cast<uint32_t>(magnitude);
  normal += 0x7FFFF + (normal >> 20 & 1);
  normal = (normal >> 20) - ((127 - 7) << 3);
  return sign | static_cast<uint8_t>(magnitude < 0x1p-6F ? little & 0xFF : normal);
}

// The largest magnitude; where one is infinite or no number, that.
float largest(std::span<const float> values) {
  int32_t most = 0;
  for (const float value : values) {
    most = std::max(most, static_cast<int32_t>(std::bit_cast<uint32_t>(value) & 0x7FFFFFFF));
  }
  return std::bit_cast<float>(most);
}

class Blocks {
 public:
  Blocks(ComputedTensor matrix, DType type, Extents shape, std::string key)
      : matrix_(std::move(matrix)),
        type_(type),
        rows_(shape[0]),
        columns_(shape[1]),
        across_((columns_ + kScaledBlock - 1) / kScaledBlock),
        key_(std::move(key)) {}

  void fill_values(uint64_t first, std::span<std::byte> out) const {
    for (uint64_t at = first, end = first + out.size(); at < end;) {
      const Stripe stripe = read(at / columns_ / kScaledBlock);
      const uint64_t begin = stripe.first_row * columns_;
      for (const uint64_t last = std::min(end, begin + stripe.values.size()); at < last;) {
        const uint64_t column = at % columns_, block = column / kScaledBlock;
        const uint64_t behind =
            std::min({last, at - column + columns_, at - column + (block + 1) * kScaledBlock});
        const float scale = stripe.scales[block];
        const float* const values = stripe.values.data() + (at - begin);
        std::byte* const to = out.data() + (at - first);
        for (uint64_t i = 0; i < behind - at; ++i) {
          to[i] = static_cast<std::byte>(round_to_e4m3(values[i] * scale));
        }
        at = behind;
      }
    }
  }

  void fill_scales(uint64_t first, std::span<std::byte> out) const {
    const uint64_t count = out.size() / sizeof(float);
    for (uint64_t done = 0; done < count;) {
      const Stripe stripe = read((first + done) / across_);
      for (uint64_t i = (first + done) % across_; i < across_ && done < count; ++i, ++done) {
        put_float(1 / stripe.scales[i], DType::Float32, out.data() + done * sizeof(float));
      }
    }
  }

 private:
  // Rows of one block.
  struct Stripe {
    uint64_t first_row;
    std::vector<float> values, scales;  // what values are multiplied by, of each block
  };

  Stripe read(uint64_t number) const {
    Stripe stripe{number * kScaledBlock, {}, {}};
    const uint64_t count = std::min(kScaledBlock, rows_ - stripe.first_row) * columns_;
    std::vector<std::byte> bytes(count * matrix_.element_bytes);
    matrix_.fill(stripe.first_row * columns_, bytes);
    stripe.values.resize(count);
    with_constant(type_, [&](auto type) {
      for (uint64_t i = 0; i < count; ++i) {
        stripe.values[i] = float_at(type, bytes.data() + i * matrix_.element_bytes);
      }
    });
    stripe.scales.resize(across_);
    for (uint64_t row = 0; row < count; row += columns_) {
      for (uint64_t block = 0; block < across_; ++block) {
        const uint64_t end = std::min((block + 1) * kScaledBlock, columns_);
        const uint64_t begin = block * kScaledBlock;
        const float most = largest(std::span(stripe.values).subspan(row + begin, end - begin));
        if (!(most <= stripe.scales[block])) stripe.scales[block] = most;
        if (!std::isfinite(most)) refuse(stripe);
      }
    }
    for (float& scale : stripe.scales) {
      scale = scale > 0 ? 1 / scale * kLargest : 1;  // in torch's order of 448 / tensor
      if (scale == 0 || !std::isfinite(scale)) refuse(stripe);
    }
    return stripe;
  }
  [[noreturn]] void refuse(const Stripe& stripe) const {
    const auto bad =
        std::ranges::count_if(stripe.values, [](float value) { return !std::isfinite(value); });
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = key_},
                "has no scale for a block of rows " + std::to_string(stripe.first_row) + " to " +
                    std::to_string(stripe.first_row + stripe.values.size() / columns_ - 1) + ", " +
                    (bad > 0 ? std::to_string(bad) + " of whose numbers are not finite"
                             : "whose numbers are too small"));
  }

  ComputedTensor matrix_;
  DType type_;
  uint64_t rows_, columns_, across_;
  std::string key_;
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
