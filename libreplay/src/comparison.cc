#include <replay/comparison.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "rules/refuse_key.h"

namespace optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Relative to tiny elements every difference is large: below this share of the largest element the
// denominator of max_rel stops shrinking.
constexpr double kRelativeFloor = 1e-3;

double distance(double a, double b) {
  if (a == b) return 0;
  const double difference = std::abs(a - b);
  return std::isnan(difference) ? kInfinity : difference;
}

double unit_in_last_place(double magnitude, int mantissa_bits) {
  if (magnitude == 0 || !std::isfinite(magnitude)) return 0;
  return std::ldexp(1.0, std::ilogb(magnitude) - mantissa_bits);
}

double quotient(double difference, double scale) {
  if (difference == 0) return 0;
  return scale == 0 ? kInfinity : difference / scale;
}

template <class Element>
Difference compare_elements(const at::Tensor& ours, const at::Tensor& expected, double rtol) {
  const auto* const a = ours.const_data_ptr<Element>();
  const auto* const b = expected.const_data_ptr<Element>();
  const int64_t count = expected.numel();
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double magnitude = std::abs(static_cast<double>(b[i]));
    if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
  }
  Difference result;
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(Element)) == 0) continue;
    ++result.differing;
    const auto theirs = static_cast<double>(b[i]);
    const double gap = distance(static_cast<double>(a[i]), theirs);
    const double magnitude = std::isfinite(theirs) ? std::abs(theirs) : 0;
    result.max_abs = std::max(result.max_abs, gap);
    const double floor = std::max(magnitude, kRelativeFloor * largest);
    result.max_rel = std::max(result.max_rel, quotient(gap, floor));
    result.excess = std::max(result.excess, gap - rtol * magnitude);
    result.square_sum += gap * gap;
  }
  result.max_scaled = quotient(result.max_abs, largest);
  constexpr int kMantissaBits = std::is_same_v<Element, float>      ? 23
                                : std::is_same_v<Element, at::Half> ? 10
                                                                    : 7;
  result.max_ulp = quotient(result.max_abs, unit_in_last_place(largest, kMantissaBits));
  return result;
}

// --- How far apart, in representable values ---

constexpr int kUlpRows = 35;  // 0, 1, 2, 4, ..., 2^32, and pairs that have no distance

// Bits of floats as whole numbers of the same order.
template <class Element>
int64_t rank_of(Element value) {
  using Bits = std::conditional_t<sizeof(Element) == 4, uint32_t, uint16_t>;
  Bits bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  const auto magnitude = static_cast<int64_t>(static_cast<Bits>(bits & ~kSign));
  return (bits & kSign) != 0 ? -magnitude : magnitude;
}

int row_of(uint64_t distance) {
  if (distance == 0) return 0;
  return 1 + static_cast<int>(std::bit_width(distance - 1));
}

uint64_t ulp_max_of(int row) {
  if (row == kUlpRows - 1) return std::numeric_limits<uint64_t>::max();
  return row == 0 ? 0 : uint64_t{1} << (row - 1);
}

template <class Element>
int row_of_pair(Element a, Element b) {
  if (std::memcmp(&a, &b, sizeof a) == 0) return 0;
  const bool is_distance =
      std::isfinite(static_cast<float>(a)) && std::isfinite(static_cast<float>(b));
  if (!is_distance) return kUlpRows - 1;
  return row_of(static_cast<uint64_t>(std::abs(rank_of(a) - rank_of(b))));
}

double cosine(double product, double a_squares, double b_squares) {
  if (a_squares == 0 && b_squares == 0) return 1;
  const double lengths = std::sqrt(a_squares) * std::sqrt(b_squares);
  return lengths == 0 ? 0 : std::clamp(product / lengths, -1.0, 1.0);
}

template <class Element>
Spread spread_of_elements(const at::Tensor& ours, const at::Tensor& expected) {
  const auto* const a = ours.const_data_ptr<Element>();
  const auto* const b = expected.const_data_ptr<Element>();
  std::array<int64_t, kUlpRows> counts = {};
  double product = 0, a_squares = 0, b_squares = 0;
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    product += x * y;
    a_squares += x * x;
    b_squares += y * y;
    ++counts[static_cast<size_t>(row_of_pair(a[i], b[i]))];
  }
  Spread spread{{}, cosine(product, a_squares, b_squares)};
  for (int row = 0; row < kUlpRows; ++row) {
    const int64_t elements = counts[static_cast<size_t>(row)];
    if (elements > 0) spread.ulps.push_back({ulp_max_of(row), elements});
  }
  return spread;
}

// Calls `body` with a value of the tensors' element type.
template <class Body>
auto with_element(const at::Tensor& ours, const at::Tensor& expected, Body&& body) {
  const bool comparable = ours.sizes() == expected.sizes() &&
                          ours.scalar_type() == expected.scalar_type() && ours.is_contiguous() &&
                          expected.is_contiguous();
  if (!comparable) refuse_key({}, "tensors of different shapes or types cannot be compared");
  switch (ours.scalar_type()) {
    case at::kFloat: return body(float{});
    case at::kBFloat16: return body(at::BFloat16());
    case at::kHalf: return body(at::Half());
    default: break;
  }
  refuse_key({}, "only float32, bfloat16 and float16 tensors can be compared");
}

}  // namespace

Difference compare(const at::Tensor& ours, const at::Tensor& expected, double rtol) {
  return with_element(ours, expected, [&](auto element) {
    return compare_elements<decltype(element)>(ours, expected, rtol);
  });
}

Spread spread_of(const at::Tensor& ours, const at::Tensor& expected) {
  return with_element(ours, expected, [&](auto element) {
    return spread_of_elements<decltype(element)>(ours, expected);
  });
}

}  // namespace optim
