#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <training/export.h>
#include <training/model_facts.h>
#include <training/training_state.h>

namespace optim {

// What a reshard changes of a run's grid; what is not given stays as the source has it, but: the
// expert tensor parallel size follows the tensor parallel one where the two were equal, the
// data-parallel size follows from a world size, and with one pipeline stage there is one chunk.
struct SizeChange {
  std::optional<uint32_t> data_parallel = {}, tensor_parallel = {}, pipeline_parallel = {},
                          virtual_pipeline_parallel = {}, context_parallel = {},
                          expert_parallel = {}, expert_tensor_parallel = {}, world_size = {};
  // A split of the layers is never carried to another number of stages: one of these, or evenly.
  std::optional<std::string> pipeline_layout = {};  // Megatron's --pipeline-model-parallel-layout
  std::optional<uint32_t> first_stage_layers = {}, last_stage_layers = {};
  std::optional<uint64_t> vocabulary = {};  // true rows of the embedding, see target_vocabulary()

  TRAINING_EXPORT bool empty() const;
};

// Pure. Throws Error(InvalidArgument), naming the number and the option, for sizes of 0 and sizes
// that do not divide what they have to.
TRAINING_EXPORT RunGrid target_grid(const TrainingState& source, const SizeChange& change);

// Rows of embedding and output layer in a grid: the true vocabulary, padded to a multiple of
// make_vocab_size_divisible_by x the tensor parallel size. Where the true size is not known, the
// stored one, which the tensor parallel size must divide. 0: the model has no vocabulary.
// Throws Error(InvalidArgument) with the option (--vocab-size), and Error(Corrupt) where rows would
// come or go by an args.vocab_size that the stored rows contradict (grid/vocabulary.h).
TRAINING_EXPORT uint64_t target_vocabulary(const TrainingState& source, const RunGrid& grid,
                                           const SizeChange& change);

}  // namespace optim
