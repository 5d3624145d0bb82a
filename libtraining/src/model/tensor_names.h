#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>

// What the keys of stored tensors say, in the files of any training loop.
namespace optim {

// "/model/a~1b" -> model, a/b; "decoder.layers.weight" -> decoder, layers, weight.
std::vector<std::string> key_steps(std::string_view key);

// One step of an RFC 6901 pointer as it is meant: ~1 is a slash, ~0 a tilde.
std::string unescaped_step(std::string step);

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

// Whether a parameter's type is a part of the model, beside that of its weights: routers and their
// biases, decays of state-space layers. Source: moe_router_dtype, expert_bias and the float32
// parameters of mamba_mixer.py and gated_delta_net.py.
bool keeps_type(std::string_view param);

// --- optimizer state, in files of any optimizer ---

// A tensor of optimizer state: "/1/optimizer/state/3/exp_avg", "/1/fp32_from_fp16_params/0/2",
// "optimizer.state.exp_avg.NAME", "optim.state.NAME.exp_avg", all of distrib_optim.pt. Not the flat
// buffers of Megatron's DistributedOptimizer in torch_dist, whose gaps hold memory that nobody
// wrote.
bool is_state(const ckpt::TensorEntry& tensor);
bool is_flat_buffer(const ckpt::TensorEntry& tensor);
// A buffer in distrib_optim.pt, whose gaps are zeros.
bool is_coalesced_buffer(const ckpt::TensorEntry& tensor);

// An object of a store that holds what distrib_optim.pt would: of Megatron-Core 0.12,
// dp_zero_gather_scatter.
bool is_state_object(const ckpt::ObjectEntry& object);

// A mapping of a training loop that holds optimizers: "optimizer", "optimizer_state_dict",
// "optimizer_states", "last_optimizer_state", "optimizerG", "optim", "d_optim".
bool is_optimizer_step(std::string_view step);

// A weight of a torch_dist folder: what is no optimizer state.
bool is_named_weight(const ckpt::TensorEntry& tensor);

// A master of `torch` files, which number their parameters: "/1/fp32_from_fp16_params/0/2".
bool is_numbered_master(const ckpt::TensorEntry& tensor);

// Of the states of the table of rules, those that are as a parameter is: exp_avg, momentum_buffer,
// ... Factors (SOAP's L and R) are not: their names are too short to tell.
bool is_moment_name(std::string_view name);
bool is_second_moment_name(std::string_view name);  // exp_avg_sq, max_exp_avg_sq, moment2_buffer

// Sums of squares.
bool is_second_moment(const ckpt::TensorEntry& tensor);

// "optimizer.state.fp32_param.NAME" and "optimizer.state.param.NAME", also behind "chained_N.":
// NAME.
std::optional<std::string> master_of(std::string_view key);

// "chained_1.optimizer.state....": which optimizer of the chain, and the key without; nullopt for a
// key that does not say.
struct ChainedKey {
  std::optional<uint32_t> optimizer;
  std::string_view key;
};
ChainedKey split_chain(std::string_view key);

// The rank that wrote a file: of __3_0.distcp and layer_wise_optimizer_3.pt 3, of
// model_optim_rng.pt 0.
std::optional<uint32_t> writer_of(std::string_view path);

}  // namespace optim
