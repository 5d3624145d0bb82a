#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Megatron-Core's --pipeline-model-parallel-layout: which layers each virtual pipeline stage has.
// Grammar, after commas have been removed:
//
//   layout  ::= stage { '|' stage }           stages in the order in which the data passes them
//   stage   ::= { 'E' | 't' | 'm' | 'L' }     embedding, decoder layer, MTP layer, loss
//   repeat  ::= '(' text ')*' number          text, which may hold '|', so many times: not nested
//             | character '*' number          the character before, so many times
//
// Source: Megatron-Core's transformer/pipeline_parallel_layer_layout.py.
namespace optim {

struct StageLayers {
  uint32_t embeddings = 0, decoder_layers = 0, mtp_layers = 0, losses = 0;
  bool operator==(const StageLayers&) const = default;
};

// [virtual stage], in the order of the data. Throws Error(InvalidArgument) with the text for what
// the grammar does not know, for more than 2^20 characters when unrolled, unless it begins with the
// only embedding and ends with the only loss, and for decoder layers behind an MTP layer.
std::vector<StageLayers> parse_pipeline_layout(std::string_view text);

// A text that is parsed to the same stages, without repeats: "Et|tt|ttL".
std::string pipeline_layout_text(const std::vector<StageLayers>& stages);

}  // namespace optim
