#pragma once

#include <cstdint>
#include <string_view>

#include <optim/layout_export.h>

namespace optim {

enum class MuonScaleMode : uint8_t { Spectral, UnitRmsNorm, ShapeScaling };
enum class MatmulPrecision : uint8_t {
  Highest,
  High,
  Medium
};  // torch.set_float32_matmul_precision
enum class MuonTpMode : uint8_t { Blockwise, Duplicated, Distributed };
// Cubic5 (core 0.20-dev): five steps without the quadratic product. Custom: the caller's own rows.
enum class NsCoefficients : uint8_t {
  Simple,
  Quintic,
  PolarExpress,
  Cans,
  Aol,
  DeepseekV4,
  Cubic5,
  Custom
};
enum class Moment2Method : uint8_t { AdaMuon, NorMuon, Namo };

// More Newton-Schulz steps than this are refused as a mistake. Tables of coefficients have at most
// 10 rows; each step multiplies small singular values by at least 1.8, so that 100 steps bring up
// every one that fp32 products can tell from zero.
inline constexpr int64_t kNewtonSchulzStepsMax = 100;

// The reference's spelling: "spectral", "unit_rms_norm", "polar_express", "deepseekv4", ...
OPTIM_LAYOUT_EXPORT std::string_view name(MuonScaleMode mode);
OPTIM_LAYOUT_EXPORT std::string_view name(MatmulPrecision precision);
OPTIM_LAYOUT_EXPORT std::string_view name(MuonTpMode mode);
OPTIM_LAYOUT_EXPORT std::string_view name(NsCoefficients type);
OPTIM_LAYOUT_EXPORT std::string_view name(Moment2Method method);

}  // namespace optim
