#include "inspect/sparkline.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

namespace tools::inspect {
namespace {

constexpr std::string_view kBlocks[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                        "\u2585", "\u2586", "\u2587", "\u2588"};
constexpr std::string_view kAscii[] = {"_", ".", "-", "~", "=", "+", "*", "#"};

}  // namespace

std::string sparkline(const std::vector<std::optional<double>>& values, bool is_utf8) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& value : values) {
    if (!value || !std::isfinite(*value)) continue;
    low = std::min(low, *value);
    high = std::max(high, *value);
  }
  // Sums in another order differ in their last digits: that is not a curve.
  const bool is_flat = !(high / 2 - low / 2 > 1e-6 * std::max(std::abs(low), std::abs(high)));
  const std::span<const std::string_view> bars(is_utf8 ? kBlocks : kAscii);
  const auto highest = static_cast<double>(bars.size() - 1);
  std::string line;
  for (const auto& value : values) {
    if (!value) {
      line += " ";
    } else if (!std::isfinite(*value)) {
      line += "!";
    } else {
      const double share = is_flat ? 0.5 : (*value / 2 - low / 2) / (high / 2 - low / 2);
      line += bars[static_cast<size_t>(std::lround(share * highest))];
    }
  }
  return line;
}

}  // namespace tools::inspect
