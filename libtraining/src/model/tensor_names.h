#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>

// What the keys of stored tensors say, in the files of any training loop.
namespace optim {

// "/model/a~1b" -> model, a/b; "decoder.layers.weight" -> decoder, layers, weight.
std::vector<std::string> key_steps(std::string_view key);

bool is_number(std::string_view step);
// "exp_avg", "momentum_buffer", "fp32_param", ...: states whose name stands before the parameter's
// in Megatron's keys.
bool is_state_name(std::string_view step);

struct StateName {
  std::string param;  // empty where the key numbers it, or names none
  std::string state;
};
// Of a tensor of optimizer state. Megatron writes optimizer.state.STATE.PARAM, PyTorch
// optim.state.PARAM.STATE.
StateName state_name(const ckpt::TensorEntry& tensor, bool is_megatron);

// A parameter as its module calls it: "/model/fc.weight" is fc.weight.
std::string weight_name(const ckpt::TensorEntry& tensor);

}  // namespace optim
