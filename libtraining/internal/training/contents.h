#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/document.h>
#include <training/key_kind.h>
#include <training/opened_training.h>
#include <training/training_state.h>

namespace optim {

// What a stored tensor is for: kind_of_key(), and what its shape and file tell beyond that.
KeyKind role_of(const ckpt::TensorEntry& tensor);

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
std::string key_of(const LogicalTensor& tensor);
// `value`, or the layer of it, under key_of(); null where that is null.
TensorRef entry_of(const LogicalTensor& tensor);

struct Contents {
  std::vector<LogicalTensor> tensors;
  // Why the tensors of the model cannot be told from their parts and copies: they are listed as
  // stored. Empty where they can.
  std::string uncounted_reason;
};

// Pure: reads no payload. `state`: read_training_state() of the checkpoint, which names all state;
// null where there is none.
Contents list_contents(const OpenedTraining& checkpoint, const TrainingState* state = nullptr);

// Whether elements of this type count as parameters: floating point and complex numbers. Buffers of
// integers and flags do not.
bool holds_parameters(ckpt::DType dtype);

// How Megatron's optimizer state is laid out: "layer_wise", "dp_reshardable", "fully_reshardable",
// "fully_sharded_model_space", "dp_zero_gather_scatter", "flat_file" (distrib_optim.pt),
// "replicated" (each data-parallel rank has all of it). Empty where the checkpoint has no optimizer
// state, is not Megatron's or does not say.
std::string optimizer_sharding(const OpenedTraining& checkpoint);

// Files that .metadata or the arguments of the run name and that are not there, sorted.
std::vector<std::string> missing_files(const OpenedTraining& checkpoint);

// --- what a file that was opened alone has a part of ---

// Tensors of a torch.save file that are one rank's part of larger ones, by the keys of ls.
class RankParts {
 public:
  RankParts() = default;  // of nothing
  explicit RankParts(const OpenedTraining& checkpoint);
  bool empty() const { return parts_.empty(); }
  const std::vector<ckpt::TensorPart>& parts() const { return parts_; }
  // Of a key of the catalog, or of a DTensor or ShardedTensor itself; null: no part.
  const ckpt::TensorPart* find(std::string_view key) const;
  // "11 tensors: DTensor, Shard(0) on mesh ('fsdp',) of size 4: this file holds part 1 of 4", each
  // kind once.
  std::vector<std::string> lines() const;

 private:
  std::vector<ckpt::TensorPart> parts_;
  std::map<std::string, size_t, std::less<>> by_key_;
};

// A file that its name makes one of several: model_world_size_4_rank_0.pt,
// model-00001-of-00002.safetensors, DeepSpeed's and Megatron's files of ranks.
struct FileOfSet {
  std::string framework;             // "DeepSpeed", "Megatron"; empty where the name has numbers
  uint64_t number = 0;               // of this one, from 1; 0: the set has no numbers
  std::optional<uint64_t> count;     // of the set, where a name says it
  std::vector<std::string> present;  // the others that lie beside it, sorted
  std::vector<std::string> missing;  // that the count calls for
};
// nullopt where more than one file was opened, or its name is no such one.
std::optional<FileOfSet> file_of_set(const OpenedTraining& checkpoint);
// "shard 1 of 4, one of 4 files; the others are beside it", "one rank's file of a DeepSpeed
// checkpoint".
std::string text_of(const FileOfSet& file);

}  // namespace optim
