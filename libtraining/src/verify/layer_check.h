#pragma once

#include <optional>
#include <string>

#include <training/training_state.h>
#include <training/verify.h>

namespace optim {

// A parameter that the rest of a model says it should have.
struct LostParam {
  std::string name;    // decoder.layers.1.self_attention.linear_proj.weight
  std::string reason;  // "layer 0 has it"
};

// Parameters of Megatron's modules (the built-in model rules) that a layer or an expert lacks
// although it has nothing that others of its kind lack, or although it has what comes with them
// (linear_proj with linear_qkv, norms where the model has any); embeddings, final norm and output
// layer of a GPT model. Nothing is said of modules that the rules do not know, of a layer without
// attention or MLP, and of a model whose args describe each layer by itself.
std::optional<LostParam> lost_param(const TrainingState& state);

// The same as a finding.
void check_layers(const TrainingState& state, VerifyReport& report);

}  // namespace optim
