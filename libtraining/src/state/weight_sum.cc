#include "state/weight_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "state/rounding.h"
#include "state/wide_vectors.h"

namespace optim {
namespace {

constexpr size_t kBlockWeights = 32;
constexpr size_t kBlockPairs = kBlockWeights / kWeightsPerPair;
using Block = std::array<uint16_t, kBlockWeights>;

__extension__ using Product = unsigned __int128;

// The step of wyhash (Wang Yi, public domain): two words of four weights make a product of 128
// bits, of which no bit of either is independent. `place`: of the pair in the weight.
OPTIM_INLINED uint64_t mixed(uint64_t first, uint64_t second, uint64_t place) {
  const uint64_t key = (place + 1) * 0x9E3779B97F4A7C15;
  const Product product = Product{first ^ key} * (second ^ key ^ 0xD1B54A32D192ED03);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

OPTIM_INLINED uint64_t sum_of_pairs(const Block& block, size_t count, uint64_t place) {
  const auto words = std::bit_cast<std::array<uint64_t, 2 * kBlockPairs>>(block);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += mixed(words[2 * i], words[2 * i + 1], place + i);
  return sum;
}

// As round_to_bfloat16(), without a branch: the compiler makes vector instructions of it.
OPTIM_INLINED void load_as_bfloat16(const std::byte* masters, Block& weights) {
  for (size_t i = 0; i < kBlockWeights; ++i) {
    uint32_t bits = 0;  // one by one: a copy would be stored in smaller parts than it is loaded
    std::memcpy(&bits, masters + i * sizeof(bits), sizeof(bits));
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    weights[i] = static_cast<uint16_t>(is_nan ? kBFloat16NaN : rounded);
  }
}

OPTIM_INLINED void load_as_float16(const std::byte* masters, Block& weights) {
  std::array<float, kBlockWeights> block;
  std::memcpy(block.data(), masters, sizeof(block));
  std::ranges::transform(block, weights.begin(), round_to_float16);
}

OPTIM_INLINED void load_weights(const std::byte* weights, Block& block) {
  std::memcpy(block.data(), weights, sizeof(block));
}

OPTIM_INLINED void load_bfloat16(const std::byte* weights, Block& block) {
  std::memcpy(block.data(), weights, sizeof(block));
  for (uint16_t& weight : block) weight = with_one_nan_bfloat16(weight);
}

OPTIM_INLINED void load_float16(const std::byte* weights, Block& block) {
  std::memcpy(block.data(), weights, sizeof(block));
  for (uint16_t& weight : block) weight = with_one_nan_float16(weight);
}

// Block by block; the last one is filled up with zeros.
template <size_t kElementBytes, typename Load>
OPTIM_INLINED uint64_t sum_of_blocks(std::span<const std::byte> bytes, uint64_t first, Load load) {
  constexpr size_t kBlockBytes = kBlockWeights * kElementBytes;
  uint64_t sum = 0;
  uint64_t place = first / kWeightsPerPair;
  Block block;
  for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) {
    load(bytes.data(), block);
    sum += sum_of_pairs(block, kBlockPairs, place);
    place += kBlockPairs;
  }
  if (bytes.empty()) return sum;
  std::array<std::byte, kBlockBytes> last = {};
  std::ranges::copy(bytes, last.begin());
  load(last.data(), block);
  constexpr size_t kPairBytes = kWeightsPerPair * kElementBytes;
  return sum + sum_of_pairs(block, (bytes.size() + kPairBytes - 1) / kPairBytes, place);
}

// `infinity`: of the type; only NaNs have larger magnitudes.
OPTIM_INLINED bool has_nan(std::span<const std::byte> weights, int16_t infinity) {
  int16_t largest = 0;
  for (size_t i = 0; i + sizeof(int16_t) <= weights.size(); i += sizeof(int16_t)) {
    int16_t bits = 0;
    std::memcpy(&bits, weights.data() + i, sizeof(bits));
    largest = std::max(largest, static_cast<int16_t>(bits & 0x7FFF));
  }
  return largest > infinity;
}

// NaNs are looked for first, in parts that stay in a core's nearest cache: to make them equal on
// the way would take as long as the sum.
template <typename Load>
OPTIM_INLINED uint64_t sum_of_parts(std::span<const std::byte> weights, uint64_t first,
                                    int16_t infinity, Load load_with_one_nan) {
  constexpr size_t kPartBytes = 4096;
  uint64_t sum = 0;
  for (; !weights.empty(); first += kPartBytes / sizeof(uint16_t)) {
    const auto part = weights.first(std::min(weights.size(), kPartBytes));
    sum += has_nan(part, infinity) ? sum_of_blocks<sizeof(uint16_t)>(part, first, load_with_one_nan)
                                   : sum_of_blocks<sizeof(uint16_t)>(part, first, load_weights);
    weights = weights.subspan(part.size());
  }
  return sum;
}

OPTIM_WIDE_VECTORS
uint64_t sum_as_they_are(std::span<const std::byte> weights, uint64_t first, ckpt::DType dtype) {
  if (dtype == ckpt::DType::Float16) {
    return sum_of_parts(weights, first, 0x7C00, load_float16);
  }
  return sum_of_parts(weights, first, 0x7F80, load_bfloat16);
}

OPTIM_WIDE_VECTORS
uint64_t sum_rounded(std::span<const std::byte> masters, uint64_t first, ckpt::DType weights) {
  if (weights == ckpt::DType::Float16) {
    return sum_of_blocks<sizeof(float)>(masters, first, load_as_float16);
  }
  return sum_of_blocks<sizeof(float)>(masters, first, load_as_bfloat16);
}

}  // namespace

uint64_t sum_of_weights(std::span<const std::byte> weights, uint64_t first, ckpt::DType dtype) {
  return sum_as_they_are(weights, first, dtype);
}

uint64_t sum_of_masters(std::span<const std::byte> masters, uint64_t first, ckpt::DType weights) {
  return sum_rounded(masters, first, weights);
}

}  // namespace optim
