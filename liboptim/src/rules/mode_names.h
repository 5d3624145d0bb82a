#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include <optim/emerging_rules.h>
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
inline constexpr std::array<std::string_view, 4> kDecayMethods = {"decoupled", "independent", "l2",
                                                                  "palm"};
inline constexpr std::array<std::string_view, 2> kEras = {"0.2", "0.3"};
inline constexpr std::array<std::string_view, 4> kSchedules = {"constant", "linear", "cosine",
                                                               "steps"};
inline constexpr std::array<std::string_view, 4> kAdamArithmetics = {"torch", "fused_adam",
                                                                     "transformer_engine", "fused"};

constexpr const auto& names_of(MuonScaleMode) { return kScaleModes; }
constexpr const auto& names_of(MatmulPrecision) { return kPrecisions; }
constexpr const auto& names_of(MuonTpMode) { return kTpModes; }
constexpr const auto& names_of(NsCoefficients) { return kCoefficients; }
constexpr const auto& names_of(Moment2Method) { return kMoment2Methods; }
constexpr const auto& names_of(EmergingOptimizers) { return kEras; }
constexpr const auto& names_of(PreconditionSchedule::Kind) { return kSchedules; }
constexpr const auto& names_of(WeightDecayMethod) { return kDecayMethods; }
constexpr const auto& names_of(AdamArithmetic) { return kAdamArithmetics; }

template <typename Mode>
std::optional<Mode> mode_named(std::string_view text) {
  const auto& names = names_of(Mode{});
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<Mode>(i);
  }
  return std::nullopt;
}

}  // namespace optim
