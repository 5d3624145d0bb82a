#pragma once

#include <algorithm>
#include <cstdint>
#include <stop_token>
#include <string_view>

#include <ckpt/checkpoint.h>
#include <ckpt/rounding.h>
#include <training/training_state.h>

// Masters of which only a remainder is stored, as TransformerEngine's FusedAdam keeps them under
// store_param_remainders: the lower 16 bits of the fp32 master as a signed integer. The bits of the
// bf16 weight, one less where the remainder is negative, are the upper ones. Such a remainder is a
// state of its own, "param_remainder"; its parameter has no master. It makes a master with any
// weight, and one that rounds to it: it proves no name.
namespace optim {

inline constexpr std::string_view kRemainderState = "param_remainder";
inline constexpr const char* kWhyRemaindersProveNothing =
    "their masters are stored as 16-bit remainders, which complete any weight: values do not prove "
    "which parameter one belongs to";

// An integer of 16 bits: forms that hold float32 alone have remainders as such numbers.
bool is_remainder(float value);

inline const StateTensor* remainder_of(const TrainedParam& param) {  // null: it has none
  const auto found = std::ranges::find(param.states, kRemainderState, &StateTensor::name);
  return found == param.states.end() ? nullptr : &*found;
}
// Of a weight that needs no master, as it is what an optimizer steps: float32 among 16-bit ones,
// which Megatron saves in torch_dist since its change 5929 (before, that fails). A
// DistributedOptimizer stores it as a master once more; a training state has it once.
inline bool is_own_master(ckpt::DType of_weight) { return of_weight == ckpt::DType::Float32; }
inline bool is_own_master(const TrainedParam& param) {  // and is stepped as such
  return !param.master && !param.states.empty() && is_own_master(param.weight->dtype);
}
// What a DistributedOptimizer calls "param", of a weight that is its own master that; null: it has
// none of them.
inline const TensorRef& filed_as_master(const TrainedParam& param) {
  const StateTensor* const remainder = remainder_of(param);
  if (remainder != nullptr) return remainder->value;
  return is_own_master(param) ? param.weight : param.master;
}
inline bool has_remainders(const TrainingState& state) {
  return std::ranges::any_of(state.params,
                             [](const TrainedParam& param) { return remainder_of(param); });
}

// Reads the remainders that are stored as float32. Throws Corrupt, by key, for a value that is
// none; Error(IoFailure, "cancelled") when asked to stop.
void require_remainders(const TrainingState& state, const ckpt::Checkpoint& source,
                        const std::stop_token& stop);

// Whether a 16-bit weight is its master, rounded; weights are compared as if all NaNs were those
// that a CPU makes.
using ckpt::kBFloat16NaN, ckpt::kFloat16NaN;
using ckpt::round_to_bfloat16, ckpt::round_to_float16, ckpt::widened, ckpt::widened_float16;

inline uint16_t with_one_nan_bfloat16(uint16_t weight) {
  return (weight & 0x7FFF) > 0x7F80 ? kBFloat16NaN : weight;
}
inline uint16_t with_one_nan_float16(uint16_t weight) {
  return (weight & 0x7FFF) > 0x7C00 ? kFloat16NaN : weight;
}

inline bool rounds_to_bfloat16(float master, uint16_t weight) {
  return round_to_bfloat16(master) == with_one_nan_bfloat16(weight);
}
inline bool rounds_to_float16(float master, uint16_t weight) {
  return round_to_float16(master) == with_one_nan_float16(weight);
}

}  // namespace optim
