#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ckpt/extents.h>
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

// Whether a model has gated linear units (SwiGLU and its like), whose linear_fc1 is two halves,
// gate and up: its matrices are asked before args. Of a gated unit linear_fc1 has two rows for each
// column of linear_fc2, else one; on a tensor-parallel rank, too. Megatron has one setting for all
// layers of a model, dense ones, experts and shared experts. Beside a language model a vision model
// and its projector have their own, of which args say nothing.
class GatingByShapes {
 public:
  // A parameter, as the state dict or torch_dist names it, where the first dimensions may be layers
  // and experts. Others than those two are passed over.
  void add(const std::string& name, const ckpt::Extents& shape);
  // Of the language model, or the only one. nullopt: no layer tells. Throws Unsupported where
  // layers differ.
  std::optional<bool> is_gated() const;
  // Of the others that tell, by what is before their layers: "vision_model.".
  std::map<std::string, bool> of_submodels() const;

 private:
  struct Pair {
    uint64_t first_rows = 0, second_columns = 0;
  };
  using Pairs = std::unordered_map<std::string, Pair>;  // by the name of linear_fc1
  const Pairs* of_language_model() const;
  static std::optional<bool> is_gated(const Pairs& pairs);

  std::map<std::string, Pairs> submodels_;  // by what is before "decoder.layers.": "vision_model."
};

// Whether the linear_fc1 that a name is of is gated.
bool is_gated(const TrainingState& state, const std::string& name);

// Corrects what args say of it by the weights that `state` has: of the model, or one rank's parts.
void ask_for_gating(TrainingState& state);

}  // namespace optim
