#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <training/model_facts.h>

// Which layers each model chunk of each pipeline stage has. Pure numbers.
// Source: get_num_layers_to_build and get_transformer_layer_offset of megatron/core/transformer
// (transformer_block.py, transformer_layer.py), mtp_on_this_rank of multi_token_prediction.py.
namespace optim {

struct LayerRange {
  uint32_t first = 0, count = 0;
  bool operator==(const LayerRange&) const = default;
};

struct ModelChunk {
  uint32_t stage = 0, chunk = 0;
  LayerRange layers = {};      // global numbers; a file numbers them from 0 in each chunk
  LayerRange mtp_layers = {};  // the same
  bool has_embedding = false;  // word and position embeddings
  bool has_output = false;     // final layer norm and output layer
  bool operator==(const ModelChunk&) const = default;
};

// In the order in which data passes them: chunk 0 of each stage, then chunk 1 of each stage, ...
// Throws Error(InvalidArgument), naming the number and the argument, for sizes of 0, for more than
// 2^20 chunks, for chunks without pipeline stages, and for layers that do not divide evenly or
// that a layout's stages do not add up to.
std::vector<ModelChunk> model_chunks(const PipelineSplit& split);
// Where a chunk of a stage stands in that order.
inline size_t chunk_index(const PipelineSplit& split, uint32_t chunk, uint32_t stage) {
  return size_t{chunk} * split.pipeline_parallel + stage;
}

// Of the chunks, those which hold a copy of the word embeddings: the one with the embedding, where
// the output layer is tied to it the one with the output, and the one with MTP layers. The first
// is the one that torch_dist stores.
std::vector<size_t> chunks_with_word_embeddings(const std::vector<ModelChunk>& chunks,
                                                bool output_is_tied);

// Megatron-Core's --pipeline-model-parallel-layout: which layers each virtual pipeline stage has.
// Grammar, after commas have been removed:
//
//   layout  ::= stage { '|' stage }           stages in the order in which the data passes them
//   stage   ::= { 'E' | 't' | 'm' | 'L' }     embedding, decoder layer, MTP layer, loss
//   repeat  ::= '(' text ')*' number          text, which may hold '|', so many times: not nested
//             | character '*' number          the character before, so many times
//
// Source: Megatron-Core's transformer/pipeline_parallel_layer_layout.py.
struct StageLayers {
  uint32_t embeddings = 0, decoder_layers = 0, mtp_layers = 0, losses = 0;
  bool operator==(const StageLayers&) const = default;
};

// [virtual stage], in the order of the data. Throws Error(InvalidArgument) with the text for what
// the grammar does not know, for more than 2^20 characters when unrolled, unless it begins with the
// only embedding and ends with the only loss, and for decoder layers behind an MTP layer.
std::vector<StageLayers> parse_pipeline_layout(std::string_view text);

// Arguments of a hybrid model's kinds of layers: the second is what releases before 0.17 call it;
// newer ones copy it to the first.
inline constexpr std::string_view kHybridPatterns[] = {"hybrid_layer_pattern",
                                                       "hybrid_override_pattern"};

// Megatron-Core's --hybrid-layer-pattern: a character for each layer, '|' between model chunks in
// the order of the data, '/' in front of the layers of each depth of multi-token prediction.
struct HybridPattern {
  std::vector<uint32_t> stages;  // layers of each chunk; one: the pattern does not say
  std::string kinds;             // of all of them
  std::string behind;            // from the first '/' on
};
HybridPattern parse_hybrid_pattern(std::string_view text);
// Whether it says which chunk has which layers.
inline bool has_stages(std::string_view pattern) { return pattern.find('|') != pattern.npos; }
// The pattern of the same layers for these chunks.
std::string pattern_for(const HybridPattern& pattern, const std::vector<ModelChunk>& chunks);
// The same chunks as a pipeline layout.
std::string layout_of(const HybridPattern& pattern, uint32_t mtp_layers);

}  // namespace optim
