#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/convert.h>
#include <ckpt/plain_target.h>
#include <optim/ownership.h>
#include <training/conversion_facts.h>
#include <training/export.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
#include <training/repair.h>

namespace optim {

// A model as a Hugging Face folder: docs/huggingface.md.
struct HuggingFaceOptions {
  std::string names = "auto";  // a table of names, or a file of one; auto: the one that args fit
  std::filesystem::path args_from = {};            // a JSON object: what args do not say
  std::filesystem::path tokenizer_from = {};       // a folder whose tokenizer is taken
  bool masters = false;                            // float32 masters instead of the model's weights
  uint64_t shard_bytes = uint64_t{5'000'000'000};  // of tensors in one of several files
};

inline constexpr std::string_view kOwnNames = "none";

struct ConvertOptions {
  ckpt::ConvertOptions base;  // what a conversion of any checkpoint is told
  // The destination is a checkpoint root that exists: it gets an iteration, and its tracker names
  // that unless it names a later one.
  bool into = false;
  SizeChange sizes = {};  // of Megatron's checkpoints; what is not given is the source's
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;
  FilingChange form = {};
  RngPolicy rng = RngPolicy::Seed;
  std::shared_ptr<const ModelRules> rules = {};  // null: the built-in ones
  bool model_only = false;                       // leave the optimizer out
  // The new folder of torch_dist shares the source's files, but for what the sizes change: the
  // common state and random states. Megatron finds tensors by name, so that their files may stay.
  bool link = false;
  RepairOptions repair = {};                            // of Megatron's checkpoints
  std::optional<HuggingFaceOptions> hugging_face = {};  // base.format is Safetensors
  bool fsdp_dtensor = false;            // Megatron-FSDP's folder; base.format is TorchDist
  bool torch_dcp = false;               // the same of Megatron under torch's FSDP2
  bool rank_files = false;              // of a plain state: those of sizes.world_size ranks of FSDP
  std::optional<uint32_t> shards = {};  // of rank_files of HSDP: ranks that share one replica
  std::string mesh_device = "cuda";     // ckpt::TargetSpec::mesh_device
  bool peft = false;  // a folder of PEFT, by hugging_face, of an adapter that Bridge trained
  // Of a Hugging Face folder that becomes Megatron's: a table of names (kOwnNames: the folder's
  // own) and args that config.json does not say.
  HuggingFaceOptions imported = {};
  // Called before anything is written, of Megatron's checkpoints.
  std::function<void(const RunGrid& source, const RunGrid& target, bool has_experts)> on_grids = {};
};
// The same; base.format, if it is set, is the source's.
using ReshardOptions = ConvertOptions;

struct ConvertReport : ckpt::ConvertReport {
  uint64_t linked_bytes = 0;
  bool layer_wise = false;
  RunGrid source_grid, target_grid;  // layer-wise only
  // Of what this call published: the elements of the source, and those that were found in the
  // result, of the same states in one order.
  std::vector<StateCount> source_states, states;  // layer-wise only
  std::vector<AmbiguousParam> ambiguous;          // layer-wise only
  std::optional<Continuation> continuation;       // of Megatron's formats, with an optimizer
  // Of the optimizer's state, carried as it is: what may be right or lost; of the arguments, which
  // ones are not known. For users.
  std::vector<std::string> not_proven;
  // Every 16-bit weight of the result is its fp32 master, rounded.
  bool masters_proven = false;
  std::vector<RepairFinding> repairs;  // that were asked for: what was wrong, and was mended
  // What the result was compared with where that is not the source: "the average of 3 sources".
  std::string computed;
  bool fsdp_dtensor = false;  // ConvertOptions::fsdp_dtensor
  bool torch_dcp = false;     // ConvertOptions::torch_dcp
  bool rank_files = false;    // ConvertOptions::rank_files
  bool peft = false;          // ConvertOptions::peft, or that such a folder was the source
  std::string names;          // of a Hugging Face folder: "llama, LlamaForCausalLM, chosen by args"
};

// The sizes of a Megatron checkpoint, all of them: --sizes-from. Throws as Checkpoint::open;
// Corrupt and Unsupported for args that describe none.
SizeChange sizes_of(const std::filesystem::path& checkpoint);

// Where ConvertOptions::into puts a source: ROOT/iter_0000003. Throws InvalidArgument for a source
// that is no iteration.
std::filesystem::path place_in_root(const std::filesystem::path& root,
                                    const OpenedTraining& source);

// The one call that ckpt-convert makes: Megatron LayerWise checkpoints here, plain state dicts
// through ckpt::make_target. The destination is absent or complete, the source never touched.
// Throws what the functions above throw; Unsupported for an argument whose layout is not understood
// (docs/arguments.md), and under options.base.strict where something is not carried, a parameter is
// ambiguous, state is not proven or an argument is not known; AlreadyExists.
TRAINING_EXPORT ConvertReport convert(const std::filesystem::path& source,
                                      const std::filesystem::path& destination,
                                      const ConvertOptions& options);

// The one call that `reshard` makes, of the same kind: refuses what has no training state to shard
// (Unsupported). Both throw InvalidArgument for sizes as target_grid() does.
TRAINING_EXPORT ConvertReport reshard(const std::filesystem::path& source,
                                      const std::filesystem::path& destination,
                                      const ReshardOptions& options);

}  // namespace optim
