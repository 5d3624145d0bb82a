#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <training/training_state.h>

// How the rows of gate and up stand in linear_fc1 of a gated linear unit: all of gate before all of
// up, or, since Megatron-Core 0.18, in alternating blocks (moe_mlp_glu_interleave_size). Of blocks
// each rank has whole pairs, one behind the other: docs/formats/torch_dist.md.
namespace optim {

struct GluRows {
  // Unclear: args state blocks, but Megatron-Core does not read them for modules of this kind.
  enum class Order : uint8_t { Halves, Blocks, Unclear } order = Order::Halves;
  uint32_t block = 0;            // rows of each
  std::string_view argument{};   // that states it
  std::string_view unread = {};  // Unclear: why
};

// Of other tensors, and of models that are not gated: Halves.
GluRows glu_rows(const TrainingState& state, const std::string& name);
inline bool is_in_blocks(const TrainingState& state, const std::string& name) {
  return glu_rows(state, name).order == GluRows::Order::Blocks;
}

// Throws Unsupported for the first parameter whose rows another number of tensor parallel ranks
// would cut within a pair of blocks, or of which it is not known how they stand.
void require_cuts_between_blocks(const TrainingState& source, const RunGrid& grid);

// Whether ranks of this grid have other parts of rows that are in blocks.
bool cuts_blocks_anew(const TrainingState& source, const RunGrid& grid);

// What is said of a checkpoint with such rows, one line for each argument.
std::vector<std::string> blocks_in_words(const TrainingState& state);

// The first parameter whose rows on each rank are not a multiple of two blocks.
struct UnevenBlocks {
  std::string argument;
  uint32_t block = 0;
  std::string problem;  // "NAME has 12 rows on each rank, ..."
};
std::optional<UnevenBlocks> find_uneven_blocks(const TrainingState& state);

}  // namespace optim
