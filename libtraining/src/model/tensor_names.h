#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>

#include "parallel/stages.h"

// What the keys of stored tensors say, in the files of any training loop.
namespace optim {

// "/model/a~1b" -> model, a/b; "decoder.layers.weight" -> decoder, layers, weight.
std::vector<std::string> key_steps(std::string_view key);

// One step of an RFC 6901 pointer as it is meant: ~1 is a slash, ~0 a tilde.
std::string unescaped_step(std::string step);

bool is_number(std::string_view step);
template <class Words>
bool is_word_of(std::string_view step, const Words& words) {
  return std::ranges::find(words, step) != std::ranges::end(words);
}
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

// What a parameter is called in the state dict of one rank, whose layers and experts count from 0
// in each model chunk and on each expert parallel rank, and in the whole model.
//
//   on the rank    decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight
//   in the model   decoder.layers.7.mlp.experts.local_experts.5.linear_fc1.weight
//
// Grouped experts (TEGroupedMLP) number their weights: mlp.experts.linear_fc1.weight1. Of tied
// embeddings the copy in the last stage is output_layer.weight there and
// embedding.word_embeddings.weight in the model.
inline constexpr std::string_view kWordEmbeddings = "embedding.word_embeddings.weight";
inline constexpr std::string_view kOutputLayer = "output_layer.weight";
// Of a stack of layers of several kinds, a hybrid model's, in the place of final_layernorm.
inline constexpr std::string_view kNormOfHybrids = "decoder.final_norm.weight";

struct ExpertRange {
  uint32_t first = 0, count = 0;  // of the model's experts, on one expert parallel rank
};

struct RankPart {
  ModelChunk chunk;
  ExpertRange experts = {};
  bool output_is_tied = false;
  std::string_view divided_stack = "decoder.layers.";  // by the stages
};

// Of the experts that expert parallel rank `ep` of `ep_count` holds. Throws Error(InvalidArgument)
// where they cannot be divided evenly.
ExpertRange experts_on(uint32_t expert_count, uint32_t ep, uint32_t ep_count);

// nullopt where the rank's part has no such layer or expert.
std::optional<std::string> name_in_model(std::string_view name_on_rank, const RankPart& part);
std::optional<std::string> name_on_rank(std::string_view name_in_model, const RankPart& part);

// A number within a name: the characters [begin, end).
struct NumberInName {
  size_t begin = 0, end = 0;
  uint32_t number = 0;
};
// The number of the expert in a name, if it is one's: on the rank or in the model, as the name is.
std::optional<NumberInName> expert_in(std::string_view name);
// The number of the decoder layer that a name is in.
std::optional<NumberInName> decoder_layer_in(std::string_view name);

}  // namespace optim
