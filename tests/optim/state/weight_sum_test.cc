#include "state/value_scan.h"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "state/remainders.h"
#include "support/random_tensors.h"

using optim::sum_of_masters;
using optim::sum_of_weights;

namespace {

std::span<const std::byte> raw_bytes_of(const auto& values) {
  return std::as_bytes(std::span(values));
}

// Any bits: infinities, subnormals, every NaN.
std::vector<float> random_masters(test::Random& random, size_t count) {
  std::vector<float> masters(count);
  for (float& master : masters) master = std::bit_cast<float>(static_cast<uint32_t>(random()));
  constexpr uint32_t kCorners[] = {0,          0x80000000, 0x7F800000, 0xFF800000, 0x7F800001,
                                   0xFFFFFFFF, 0x7F7FFFFF, 0x00007FFF, 0x00008000, 0x00018000};
  for (size_t i = 0; i < std::min(count, std::size(kCorners)); ++i) {
    masters[random() % count] = std::bit_cast<float>(kCorners[i]);
  }
  return masters;
}

std::vector<uint16_t> rounded(const std::vector<float>& masters,
                              uint16_t (*round)(float) = optim::round_to_bfloat16) {
  std::vector<uint16_t> weights;
  for (const float master : masters) weights.push_back(round(master));
  return weights;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(weight_sum)

BOOST_AUTO_TEST_CASE(masters_have_the_sum_of_the_weights_that_they_round_to) {
  test::Random random(67);
  for (size_t count = 1; count < 300; ++count) {
    const auto masters = random_masters(random, count);
    BOOST_TEST(sum_of_masters(raw_bytes_of(masters), 0) ==
               sum_of_weights(raw_bytes_of(rounded(masters)), 0));
    BOOST_TEST(sum_of_masters(raw_bytes_of(masters), 0, ckpt::DType::Float16) ==
               sum_of_weights(raw_bytes_of(rounded(masters, optim::round_to_float16)), 0,
                              ckpt::DType::Float16));
  }
}

BOOST_AUTO_TEST_CASE(which_nan_a_nan_is_does_not_count_in_either_type) {
  test::Random random(70);
  struct Type {
    ckpt::DType dtype;
    uint16_t infinity, one;
  };
  for (const Type& type :
       {Type{ckpt::DType::BFloat16, 0x7F80, 0x3F80}, Type{ckpt::DType::Float16, 0x7C00, 0x3C00}}) {
    for (const size_t count : {1u, 31u, 32u, 70u, 2047u, 5000u}) {  // also over parts of 2048
      std::vector<uint16_t> weights(count, type.one);
      const size_t place = random() % count;
      const auto sum_with = [&](uint32_t bits) {
        weights[place] = static_cast<uint16_t>(bits);
        return sum_of_weights(raw_bytes_of(weights), 0, type.dtype);
      };
      const uint64_t sum = sum_with(type.infinity + 1u);
      for (const uint32_t bits : {0x7FFFu, 0xFFFFu, type.infinity + 0x8001u}) {
        BOOST_TEST(sum_with(bits) == sum);
      }
      for (const uint32_t bits : {type.infinity + 0u, type.infinity + 0x8000u, 0u, 0x8000u}) {
        BOOST_TEST(sum_with(bits) != sum);
      }
      std::vector<float> masters(count, 1.0F);
      masters[place] = -std::numeric_limits<float>::quiet_NaN();
      BOOST_TEST(sum_of_masters(raw_bytes_of(masters), 0, type.dtype) == sum);
    }
  }
}

BOOST_AUTO_TEST_CASE(parts_of_whole_pairs_add_up_to_the_whole) {
  test::Random random(68);
  for (int round = 0; round < 200; ++round) {
    const auto masters = random_masters(random, 1 + random() % 1000);
    const auto weights = rounded(masters);
    uint64_t of_masters = 0, of_weights = 0;
    for (size_t first = 0; first < masters.size();) {
      const size_t count =
          std::min(masters.size() - first, optim::kWeightsPerPair * (1 + random() % 40));
      of_masters += sum_of_masters(raw_bytes_of(masters).subspan(first * 4, count * 4), first);
      of_weights += sum_of_weights(raw_bytes_of(weights).subspan(first * 2, count * 2), first);
      first += count;
    }
    BOOST_TEST(of_masters == sum_of_weights(raw_bytes_of(weights), 0));
    BOOST_TEST(of_weights == of_masters);
  }
}

// But for those of a NaN.
BOOST_AUTO_TEST_CASE(every_bit_and_every_place_counts) {
  test::Random random(69);
  auto weights = rounded(random_masters(random, 70));
  for (uint16_t& weight : weights) {
    if ((weight & 0x7F80) == 0x7F80) weight = static_cast<uint16_t>(random() & 0xBFFF);
  }
  const uint64_t sum = sum_of_weights(raw_bytes_of(weights), 0);
  for (size_t bit = 0; bit < weights.size() * 16; ++bit) {
    auto changed = weights;
    changed[bit / 16] ^= static_cast<uint16_t>(1u << bit % 16);
    BOOST_TEST(sum_of_weights(raw_bytes_of(changed), 0) != sum, "bit " << bit);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      auto swapped = weights;
      std::swap(swapped[i], swapped[j]);
      BOOST_TEST((sum_of_weights(raw_bytes_of(swapped), 0) == sum) == (weights[i] == weights[j]));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
