#include "step/tensors/param_storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <ckpt/error.h>
#include <optim/checkpoint_bridge.h>
#include <utility>

namespace optim {
namespace {

bool is_fp32(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }

bool keeps_remainder(const OptimizedParam& param, const StatePrecision& precision) {
  return precision.remainders && param.model.param.scalar_type() == at::kBFloat16;
}

bool keeps_packed_master(const OptimizedParam& param, const StatePrecision& precision) {
  return precision.main_param != at::kFloat && !is_fp32(param.model.param);
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
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = param.model.info.name},
                    "the gradient's type differs from main_grads_dtype");
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

}  // namespace optim
