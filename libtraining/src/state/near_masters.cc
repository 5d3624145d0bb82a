// Masters beside weights that were rounded to fewer bits than are stored.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include <ckpt/error.h>
#include <ckpt/tensor_stream.h>

#include "state/passing_proof.h"

namespace optim {
namespace {

using ckpt::DType;

constexpr size_t kPieceElements = size_t{1} << 16;
// Of a weight: half a step of fp4 (E2M1) above 1 is a quarter, of fp8 at most a sixteenth.
constexpr float kNearness = 1.0f / 3;

float widened(uint16_t weight, DType dtype) {
  if (dtype == DType::BFloat16) return std::bit_cast<float>(uint32_t{weight} << 16);
  const int exponent = weight >> 10 & 0x1F, mantissa = weight & 0x3FF;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (weight & 0x8000) != 0 ? -magnitude : magnitude;
}

bool are_compared(const TrainedParam& param) {
  const DType dtype = param.weight->dtype;
  return param.master && param.master->dtype == DType::Float32 &&
         param.master->shape == param.weight->shape &&
         (dtype == DType::BFloat16 || dtype == DType::Float16);
}

void require_near(const TrainedParam& param, const ckpt::Checkpoint& source,
                  const std::stop_token& stop) {
  std::vector<float> masters(kPieceElements);
  std::vector<uint16_t> weights(kPieceElements);
  ckpt::TensorStream master_stream(*param.master, source), weight_stream(*param.weight, source);
  uint64_t compared = 0, near = 0;
  while (weight_stream.left_bytes() > 0) {
    if (stop.stop_requested()) {
      throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "cancelled");
    }
    const size_t count = std::min(kPieceElements, weight_stream.left_bytes() / sizeof(uint16_t));
    master_stream.read(std::as_writable_bytes(std::span(masters).first(count)));
    weight_stream.read(std::as_writable_bytes(std::span(weights).first(count)));
    for (size_t i = 0; i < count; ++i) {
      const float weight = widened(weights[i], param.weight->dtype);
      if (weight == 0) continue;  // what was too small to be kept
      ++compared;
      near += std::abs(masters[i] - weight) <= kNearness * std::abs(weight) ? 1 : 0;
    }
  }
  if (near * 2 < compared) refuse_master(source, param);
}

}  // namespace

void require_near_masters(const TrainingState& state, const ckpt::Checkpoint& source,
                          const std::stop_token& stop) {
  for (const TrainedParam& param : state.params) {
    if (are_compared(param)) require_near(param, source, stop);
  }
}

}  // namespace optim
