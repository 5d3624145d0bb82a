#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/checkpoint.h>
#include <optim/key_kind.h>
#include <optim/layout_export.h>
#include <optim/training_state.h>

namespace optim {

// What a stored tensor is for: kind_of_key(), and what its shape and file tell beyond that.
OPTIM_LAYOUT_EXPORT KeyKind role_of(const ckpt::TensorEntry& tensor);

// A tensor as the training run has it: once, in however many chunks, rank files and copies it is
// stored. A layer of a tensor that is stacked over layers is a tensor.
struct LogicalTensor {
  KeyKind role = KeyKind::Model;
  // The parameter's; of optimizer state the parameter that it belongs to, empty where the files do
  // not name it.
  std::string name;
  std::string state;  // of optimizer state: "exp_avg", "fp32_param", ...
  ckpt::DType dtype = ckpt::DType::Float32;
  ckpt::Extents shape;
  uint64_t count_bytes = 0;
  // Where its bytes are: the tensor, or one that is stacked over layers, of which it is `layer`.
  // Null of one that ranks hold in parts which only the training state joins. May point into the
  // checkpoint.
  TensorRef value = {};
  std::optional<uint64_t> layer = {};
};

// NAME of what is the model's, optimizer.state.STATE.NAME; empty where the files do not name it.
OPTIM_LAYOUT_EXPORT std::string key_of(const LogicalTensor& tensor);
// `value`, or the layer of it, under key_of(); null where that is null.
OPTIM_LAYOUT_EXPORT TensorRef entry_of(const LogicalTensor& tensor);

struct Contents {
  std::vector<LogicalTensor> tensors;
  // Why the tensors of the model cannot be told from their parts and copies: they are listed as
  // stored. Empty where they can.
  std::string uncounted_reason;
};

// Pure: reads no payload. `view`: name_layer_wise() of the checkpoint, which names all state; null
// where there is none.
OPTIM_LAYOUT_EXPORT Contents list_contents(const ckpt::Checkpoint& checkpoint,
                                           const TrainingState* view = nullptr);

// Whether elements of this type count as parameters: floating point and complex numbers. Buffers of
// integers and flags do not.
OPTIM_LAYOUT_EXPORT bool holds_parameters(ckpt::DType dtype);

// How Megatron's optimizer state is laid out: "layer_wise", "dp_reshardable", "fully_reshardable",
// "fully_sharded_model_space", "dp_zero_gather_scatter", "flat_file" (distrib_optim.pt),
// "replicated" (each data-parallel rank has all of it). Empty where the checkpoint has no optimizer
// state, is not Megatron's or does not say.
OPTIM_LAYOUT_EXPORT std::string optimizer_sharding(const ckpt::Checkpoint& checkpoint);

// Files that .metadata or the arguments of the run name and that are not there, sorted.
OPTIM_LAYOUT_EXPORT std::vector<std::string> missing_files(const ckpt::Checkpoint& checkpoint);

}  // namespace optim
