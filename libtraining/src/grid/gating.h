#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include <ckpt/extents.h>
#include <training/training_state.h>

namespace optim {

// Whether a model has gated linear units (SwiGLU and its like), whose linear_fc1 is two halves,
// gate and up: its matrices are asked before args. Of a gated unit linear_fc1 has two rows for each
// column of linear_fc2, else one; on a tensor-parallel rank, too. Megatron has one setting for all
// layers of a model, dense ones, experts and shared experts. Beside a language model a vision model
// and its projector have their own, of which args say nothing: those are passed over.
class GatingByShapes {
 public:
  // A parameter, as the state dict or torch_dist names it, where the first dimensions may be layers
  // and experts. Others than those two are passed over.
  void add(const std::string& name, const ckpt::Extents& shape);
  // nullopt: no layer tells. Throws Unsupported where layers differ.
  std::optional<bool> is_gated() const;

 private:
  struct Pair {
    uint64_t first_rows = 0, second_columns = 0;
  };
  using Pairs = std::unordered_map<std::string, Pair>;  // by the name of linear_fc1
  const Pairs* of_language_model() const;

  std::map<std::string, Pairs> submodels_;  // by what is before "decoder.layers.": "vision_model."
};

// Corrects what args say of it by the weights that `view` has: of the model, or one rank's parts.
void ask_for_gating(TrainingState& view);

}  // namespace optim
