#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/stages.h"

// What a parameter is called in the state dict of one rank, whose layers and experts count from 0
// in each model chunk and on each expert parallel rank, and in the whole model.
//
//   on the rank    decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight
//   in the model   decoder.layers.7.mlp.experts.local_experts.5.linear_fc1.weight
//
// Grouped experts (TEGroupedMLP) number their weights: mlp.experts.linear_fc1.weight1. Of tied
// embeddings the copy in the last stage is output_layer.weight there and
// embedding.word_embeddings.weight in the model.
namespace optim {

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
