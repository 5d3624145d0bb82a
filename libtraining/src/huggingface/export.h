#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/inventory.h>
#include <ckpt/target.h>
#include <training/convert.h>
#include <training/training_state.h>

#include "huggingface/name_table.h"
#include "huggingface/viewed_tensor.h"

namespace optim {

// A model as a Hugging Face folder, to be written.
struct HuggingFaceExport {
  struct Tensor {
    std::string key;
    ViewedTensor value;
  };
  ckpt::Target target;  // config.json, generation_config.json, tokenizer files, weights
  std::vector<Tensor> tensors;
  std::string names;              // "llama, LlamaForCausalLM: the only table that args fit"
  std::set<std::string> linears;  // keys of weights of linear layers
  std::shared_ptr<const ckpt::PayloadSource> payloads;  // null: all comes from the source
  NameTable table;                                      // and what its expressions may name
  nlohmann::json args, given;
  nlohmann::json quantization;  // null: of config.json
};

// By a table of names; `types`: by names of the result. Throws Unsupported, by name, where args fit
// no table or a table's conditions do not hold, where the model lacks a tensor that the table
// needs, has one that it has no place for, or one of another shape; Corrupt where args contradict
// the vocabulary; as read_named_file() for the files that options name.
// Of fp8-block128 among the types `source` is what the state's chunks lie in; null: they are mended
// as they are read, which is refused.
HuggingFaceExport export_model(const TrainingState& state, const HuggingFaceOptions& options,
                               const std::vector<ckpt::TypeRule>& types,
                               const ckpt::Checkpoint* source = nullptr);

// What expressions of a table may name: arguments, of the checkpoint and of options.args_from;
// sizes of the vocabulary.
nlohmann::json arguments_of(const TrainingState& state, const HuggingFaceOptions& options);
nlohmann::json given_sizes(const TrainingState& state);
// The table that options ask for, whose conditions hold; `names`: HuggingFaceExport::names.
NameTable table_of(const nlohmann::json& args, const nlohmann::json& given,
                   const HuggingFaceOptions& options, std::string& names);

// That most elements of tensors have; of none float32.
ckpt::DType type_of_most(const std::vector<ckpt::TensorEntry>& tensors);

// The tensors of an export and those of a folder, to be compared: where both have one shape, as the
// table names its axes.
ckpt::Inventory inventory_of(const std::vector<HuggingFaceExport::Tensor>& tensors);
void name_axes(const std::vector<HuggingFaceExport::Tensor>& tensors, ckpt::Inventory& folder);

// The rows of a result without padding. Throws what target_vocabulary() throws for them.
void state_vocabulary(uint64_t rows, TrainingState& state);

}  // namespace optim
