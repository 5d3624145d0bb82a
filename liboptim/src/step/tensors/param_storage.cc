#include "step/tensors/param_storage.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include <optim/checkpoint_bridge.h>
#include <optim/optimized_param.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>

#include "rules/refuse_key.h"

namespace optim {
namespace {

bool is_fp32(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }

bool keeps_remainder(const OptimizedParam& param, const StatePrecision& precision) {
  return precision.remainders && param.model.param.scalar_type() == at::kBFloat16;
}

bool keeps_packed_master(const OptimizedParam& param, const StatePrecision& precision) {
  return precision.main_param != at::kFloat && !is_fp32(param.model.param);
}

// What the largest magnitude becomes; 0: the type needs no scale.
double scaled_max(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kBFloat16: return 0;
    case at::kHalf: return 65504.0 / 2;
    case at::kFloat8_e4m3fn: return 448;
    default: break;
  }
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    std::string("states cannot be kept as ") + c10::toString(type));
}

at::ScalarType state_type(ckpt::DType dtype) {
  return dtype == ckpt::DType::UInt8 ? at::kFloat8_e4m3fn : scalar_type(dtype);
}

}  // namespace

bool has_master(const OptimizedParam& param) { return !is_fp32(param.model.param); }

at::Device home_of(const OptimizedParam& param) {
  return param.is_offloaded ? at::Device(at::kCPU) : param.model.param.device();
}

void create_zero_states(const UpdateRule& rule, OptimizedParam& param,
                        const StatePrecision& precision) {
  for (const std::string_view state_name : rule.state_names()) {
    const std::string name(state_name);
    if (param.state.contains(name) || param.packed_state.contains(name)) continue;
    const at::Tensor zeros =
        at::zeros(param.model.param.sizes(), at::TensorOptions(at::kFloat).device(home_of(param)));
    store_state(param, name, zeros, precision);
  }
}

void check_grad_type(const OptimizedParam& param, const OptimizerConfig& config) {
  if (!config.use_precision_aware_optimizer) return;
  if (dtype_of(param.model.main_grad.scalar_type()) == config.main_grads_dtype) return;
  refuse_key(param.model.info.name, "the gradient's type differs from main_grads_dtype");
}

at::Tensor master_of(const OptimizedParam& param) {
  if (param.main_param.defined()) return param.main_param;
  if (param.remainder.defined()) return join_remainder({param.model.param, param.remainder});
  return unpack(param.packed_master);
}

ParamState state_of(const OptimizedParam& param) {
  ParamState state = param.state;
  for (const auto& [name, packed] : param.packed_state) state[name] = unpack(packed);
  return state;
}

bool is_packed(const OptimizedParam& param, const StatePrecision& precision) {
  return precision.first_moment != at::kFloat || precision.second_moment != at::kFloat ||
         keeps_remainder(param, precision) || keeps_packed_master(param, precision);
}

void unpack_param(OptimizedParam& param) {
  param.main_param = master_of(param);
  param.packed_master = {};
  for (auto& [name, packed] : std::exchange(param.packed_state, {})) {
    param.state[name] = unpack(packed);
  }
}

void pack_param(OptimizedParam& param, const StatePrecision& precision) {
  for (const auto& [name, value] : ParamState(param.state)) {
    store_state(param, name, value, precision);
  }
  if (has_master(param)) store_master(param, param.main_param, precision);
}

void store_master(OptimizedParam& param, const at::Tensor& value, const StatePrecision& precision) {
  if (keeps_remainder(param, precision)) {
    if (!param.remainder.defined()) {
      param.remainder = at::empty(value.sizes(), value.options().dtype(at::kShort));
    }
    split_remainder(value.contiguous(), {param.model.param, param.remainder});
    param.main_param = at::Tensor();
  } else if (keeps_packed_master(param, precision)) {
    param.packed_master = pack(value, precision.main_param);
    param.main_param = at::Tensor();
  } else if (!param.main_param.defined()) {
    param.main_param = value.clone();
  } else if (!param.main_param.is_same(value)) {
    param.main_param.copy_(value);
  }
}

void store_state(OptimizedParam& param, const std::string& name, const at::Tensor& value,
                 const StatePrecision& precision) {
  const at::ScalarType type = precision.of_state(name);
  if (type == at::kFloat) {
    if (!param.state[name].is_same(value)) param.state[name] = value.to(at::kFloat).clone();
    return;
  }
  param.packed_state[name] = pack(value, type);
  param.state.erase(name);
}

PackedTensor pack(const at::Tensor& value, at::ScalarType type) {
  const double range = scaled_max(type);
  if (range == 0) return {value.to(type, /*non_blocking=*/false, /*copy=*/true), {}};
  const float largest = value.numel() == 0 ? 0 : at::amax(at::abs(value)).item<float>();
  float scale = largest / static_cast<float>(range);
  if (scale <= 0x1p-128F) scale = 0;  // has no inverse in fp32: 0 * inf would be NaN
  const float inverse = scale > 0 ? 1 / scale : scale;  // NaN stays
  return {at::mul(value, inverse).to(type),
          at::full({1}, scale, value.options().dtype(at::kFloat))};
}

at::Tensor unpack(const PackedTensor& packed) {
  at::Tensor value = packed.data.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  if (packed.scale.defined()) value.mul_(packed.scale);
  return value;
}

void split_remainder(const at::Tensor& master, const RemainderParts& parts) {
  if (!master.device().is_cpu()) {  // the halves of a tensor on a GPU are made here
    const RemainderParts here = {at::empty(master.sizes(), at::kBFloat16),
                                 at::empty(master.sizes(), at::kShort)};
    split_remainder(master.cpu(), here);
    at::Tensor(parts.high).copy_(here.high);
    at::Tensor(parts.low).copy_(here.low);
    return;
  }
  const auto* const values = master.const_data_ptr<float>();
  auto* const high = static_cast<uint16_t*>(parts.high.mutable_data_ptr());
  auto* const low = parts.low.mutable_data_ptr<int16_t>();
  for (int64_t i = 0; i < master.numel(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    low[i] = static_cast<int16_t>(bits & 0xFFFFU);
    high[i] = static_cast<uint16_t>((bits >> 16U) + (low[i] < 0 ? 1U : 0U));
  }
}

at::Tensor join_remainder(const RemainderParts& parts) {
  if (!parts.high.device().is_cpu()) {
    return join_remainder({parts.high.cpu(), parts.low.cpu()}).to(parts.high.device());
  }
  at::Tensor master = at::empty(parts.high.sizes(), at::kFloat);
  auto* const values = master.mutable_data_ptr<float>();
  const auto* const high = static_cast<const uint16_t*>(parts.high.const_data_ptr());
  const auto* const low = parts.low.const_data_ptr<int16_t>();
  for (int64_t i = 0; i < master.numel(); ++i) {
    const auto upper = static_cast<uint16_t>(high[i] - (low[i] < 0 ? 1U : 0U));
    values[i] = std::bit_cast<float>((uint32_t{upper} << 16U) | static_cast<uint16_t>(low[i]));
  }
  return master;
}

at::ScalarType StatePrecision::of_state(std::string_view state_name) const {
  const auto known = std::ranges::find(all_states(), state_name, &StateSpec::name);
  if (known == all_states().end()) return first_moment;
  switch (known->kind) {
    case StateSpec::Kind::SecondMoment: return second_moment;
    case StateSpec::Kind::Factor: return at::kFloat;
    case StateSpec::Kind::FirstMoment: break;
  }
  return first_moment;
}

StatePrecision state_precision(const OptimizerConfig& config) {
  StatePrecision precision;
  // The reference's optimizer that offloads keeps fp32, whatever it is told.
  if (!config.use_precision_aware_optimizer || config.optimizer_cpu_offload) return precision;
  precision.main_param = state_type(config.main_params_dtype);
  precision.first_moment = state_type(config.exp_avg_dtype);
  precision.second_moment = state_type(config.exp_avg_sq_dtype);
  precision.remainders = config.store_param_remainders && precision.main_param == at::kFloat;
  return precision;
}

}  // namespace optim
