#pragma once

#include <ATen/core/Tensor.h>

#include <optim/export.h>
#include <optim/optimizer_config.h>

namespace optim {

// Masters and states in fewer bits (use_precision_aware_optimizer). Formats of TransformerEngine's
// FusedAdam.

// value = data * scale, in fp32. `scale`: fp32, one element; undefined: 1. fp16 and fp8 have one,
// the largest magnitude over 32752 (half of fp16's range) or 448 (fp8 e4m3's); zero tensors have
// scale 0.
struct PackedTensor {
  at::Tensor data, scale;
};

// `type`: Float, BFloat16, Half or Float8_e4m3fn, else Error(InvalidArgument). Rounds to nearest
// even; NaN and infinity make a scaled tensor NaN, never something finite.
OPTIM_EXPORT PackedTensor pack(const at::Tensor& value, at::ScalarType type);
OPTIM_EXPORT at::Tensor unpack(const PackedTensor& packed);  // a new fp32 tensor

// An fp32 master as its bf16 parameter and a signed 16-bit remainder, 4 bytes together, exact. The
// bf16 part is the nearest one but in ties, which go away from zero. Both are written in place.
struct RemainderParts {
  at::Tensor high;  // bf16: the model's parameter
  at::Tensor low;   // int16
};
OPTIM_EXPORT void split_remainder(const at::Tensor& master, const RemainderParts& parts);
OPTIM_EXPORT at::Tensor join_remainder(const RemainderParts& parts);  // a new fp32 tensor

// How the optimizer keeps what it keeps, by the configuration.
struct OPTIM_EXPORT StatePrecision {
  at::ScalarType main_param = at::kFloat;
  at::ScalarType first_moment = at::kFloat;   // exp_avg, ...: StateSpec::Kind
  at::ScalarType second_moment = at::kFloat;  // exp_avg_sq, moment2_buffer
  bool remainders = false;                    // for bf16 parameters, where main_param is fp32

  at::ScalarType of_state(std::string_view state_name) const;
};
OPTIM_EXPORT StatePrecision state_precision(const OptimizerConfig& config);

}  // namespace optim
