// The emulation's conversions are those of CUDA's headers.
#include "kernels/emulation/narrow_floats.h"

#include <kernels/element.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <boost/test/unit_test.hpp>

namespace {

using kernels::ElementType;

struct Format {
  ElementType type;
  uint32_t (*narrow)(float);
  float (*widen)(uint32_t);
};

float float_of_bf16(uint32_t bits) { return kernels::float_of_bits(bits << 16); }

const Format kFormats[] = {
    {ElementType::F16, emulation::half_of, emulation::float_of_half},
    {ElementType::F8E4M3, emulation::e4m3_of, emulation::float_of_e4m3},
    {ElementType::BF16, emulation::bf16_of, float_of_bf16},
};

uint32_t patterns_of(ElementType type) { return 1U << 8 * kernels::bytes_of(type); }

}  // namespace

BOOST_AUTO_TEST_SUITE(narrow_floats)

BOOST_AUTO_TEST_CASE(every_pattern_has_the_toolkits_value) {
  for (const Format& format : kFormats) {
    for (uint32_t bits = 0; bits < patterns_of(format.type); ++bits) {
      const float wanted = kernels::decode(format.type, bits), found = format.widen(bits);
      if (std::isnan(wanted) && std::isnan(found)) continue;
      BOOST_REQUIRE_EQUAL(kernels::bits_of_float(found), kernels::bits_of_float(wanted));
    }
  }
}

// Values, halves between them, and the floats next to those; and whatever bits come.
BOOST_AUTO_TEST_CASE(every_rounding_is_the_toolkits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Format& format : kFormats) {
    const auto check = [&](float value) {
      BOOST_REQUIRE_EQUAL(format.narrow(value), kernels::encode(format.type, value));
    };
    for (uint32_t bits = 0; bits + 1 < patterns_of(format.type); ++bits) {
      const float value = format.widen(bits), next = format.widen(bits + 1);
      for (const float near : {value, (value + next) / 2}) {
        check(near);
        check(std::nextafter(near, kInfinity));
        check(std::nextafter(near, -kInfinity));
      }
    }
    std::mt19937 random(1);
    for (int i = 0; i < 200000; ++i) {
      check(kernels::float_of_bits(static_cast<uint32_t>(random())));
    }
  }
}

// The kernels convert neighbours by one instruction.
BOOST_AUTO_TEST_CASE(two_at_once_are_each_of_them) {
  std::mt19937 random(2);
  for (const Format& format : kFormats) {
    const int bits = 8 * kernels::bytes_of(format.type);
    for (int i = 0; i < 200000; ++i) {
      const float first = kernels::float_of_bits(static_cast<uint32_t>(random()));
      const float second = format.widen(static_cast<uint32_t>(random()) % patterns_of(format.type));
      BOOST_REQUIRE_EQUAL(kernels::encode_two(format.type, first, second),
                          kernels::encode(format.type, first) | kernels::encode(format.type, second)
                                                                    << bits);
    }
  }
  for (uint32_t both = 0; both < 0x10000; ++both) {
    float values[2];
    kernels::decode_two_e4m3(both, values[0], values[1]);
    for (const int i : {0, 1}) {
      const float wanted = kernels::decode(ElementType::F8E4M3, both >> 8 * i & 0xFF);
      if (std::isnan(wanted) && std::isnan(values[i])) continue;
      BOOST_REQUIRE_EQUAL(kernels::bits_of_float(values[i]), kernels::bits_of_float(wanted));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
