#pragma once

#include <string>

#include <optim/optimizer.h>
#include <optim/update_rule.h>

namespace optim {

// Whether anything of this parameter is, or will be, kept in fewer bits than fp32.
bool is_packed(const OptimizedParam& param, const StatePrecision& precision);

// Where its master and its states lie: beside the parameter, or on the CPU where that updates it.
at::Device home_of(const OptimizedParam& param);

// Zeros for all states that are absent, in the form that the precision asks for. Of rules whose
// states have the parameter's shape.
void create_zero_states(const UpdateRule& rule, OptimizedParam& param,
                        const StatePrecision& precision);

// Throws InvalidArgument where the gradient's type is not the one that the configuration states for
// a precision-aware optimizer.
void check_grad_type(const OptimizedParam& param, const OptimizerConfig& config);

// Between updates what the precision asks for is packed; for an update all is fp32.
void unpack_param(OptimizedParam& param);
void pack_param(OptimizedParam& param, const StatePrecision& precision);

// A new value in the form that the precision asks for. Shapes must be equal.
void store_master(OptimizedParam& param, const at::Tensor& value, const StatePrecision& precision);
void store_state(OptimizedParam& param, const std::string& name, const at::Tensor& value,
                 const StatePrecision& precision);

}  // namespace optim
