#include <optim/comparison.h>

#include <ckpt/error.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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
  constexpr int kMantissaBits = std::is_same_v<Element, float> ? 23 : 7;
  result.max_ulp = quotient(result.max_abs, unit_in_last_place(largest, kMantissaBits));
  return result;
}

void check_comparable(const at::Tensor& ours, const at::Tensor& expected) {
  const bool comparable = ours.sizes() == expected.sizes() &&
                          ours.scalar_type() == expected.scalar_type() && ours.is_contiguous() &&
                          expected.is_contiguous();
  if (!comparable) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "tensors of different shapes or types cannot be compared");
  }
}

}  // namespace

Difference compare(const at::Tensor& ours, const at::Tensor& expected, double rtol) {
  check_comparable(ours, expected);
  if (ours.scalar_type() == at::kFloat) return compare_elements<float>(ours, expected, rtol);
  if (ours.scalar_type() == at::kBFloat16) {
    return compare_elements<at::BFloat16>(ours, expected, rtol);
  }
  if (ours.scalar_type() == at::kHalf) return compare_elements<at::Half>(ours, expected, rtol);
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    "only float32, bfloat16 and float16 tensors can be compared");
}

}  // namespace optim
