#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include <optim/update_modes.h>

namespace optim {

// The reference's names of each enumeration's members, in the order of the enumerators.
inline constexpr std::array<std::string_view, 3> kScaleModes = {"spectral", "unit_rms_norm",
                                                                "shape_scaling"};
inline constexpr std::array<std::string_view, 3> kPrecisions = {"highest", "high", "medium"};
inline constexpr std::array<std::string_view, 3> kTpModes = {"blockwise", "duplicated",
                                                             "distributed"};
inline constexpr std::array<std::string_view, 8> kCoefficients = {
    "simple", "quintic", "polar_express", "cans", "aol", "deepseekv4", "cubic5", "custom"};
inline constexpr std::array<std::string_view, 3> kMoment2Methods = {"adamuon", "normuon", "namo"};

constexpr const auto& names_of(MuonScaleMode) { return kScaleModes; }
constexpr const auto& names_of(MatmulPrecision) { return kPrecisions; }
constexpr const auto& names_of(MuonTpMode) { return kTpModes; }
constexpr const auto& names_of(NsCoefficients) { return kCoefficients; }
constexpr const auto& names_of(Moment2Method) { return kMoment2Methods; }

template <typename Mode>
std::optional<Mode> mode_named(std::string_view text) {
  const auto& names = names_of(Mode{});
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<Mode>(i);
  }
  return std::nullopt;
}

}  // namespace optim
