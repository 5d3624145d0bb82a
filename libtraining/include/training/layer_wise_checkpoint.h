#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <ckpt/target.h>
#include <optim/ownership.h>
#include <training/export.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

// Megatron checkpoints that are read into one training state: of LayerWiseDistributedOptimizer, of
// optimizers that no rank shares (Float16Optimizer), and of a DistributedOptimizer (ZeRO-1) whose
// keys name the parameters, at any parallel size.
namespace optim {

// True where read_training_state() knows the layout: torch folders with layer_wise_optimizer_*.pt
// or optimizer state beside the model, torch_dist folders whose args and common state say so.
TRAINING_EXPORT bool has_training_state(const OpenedTraining& checkpoint);

// The rows of a file of --model-rules (docs/schema/input/model_rules.json), with the built-in ones.
// Throws Corrupt for what is not in the schema, NotFound and IoFailure as files are read.
std::shared_ptr<const ModelRules> read_model_rules(const std::filesystem::path& path);

// What a module keeps beside its parameters and no optimizer steps, as the built-in rules know it:
// a router's expert_bias.
TRAINING_EXPORT bool is_model_buffer(std::string_view name);

struct ReadOptions {
  std::shared_ptr<const ModelRules> rules = {};  // null: the built-in ones
  bool model_only = false;                       // leave the optimizer out
  // Parameters that no rank owns and no flat buffer holds: of `torch`, and of dp_reshardable.
  std::set<std::string> frozen = {};
};

// Computes the training state. `torch` files hold no names: the ping-pong deal is replayed from the
// model's order and must give each rank file's groups, counts and shapes. Throws Corrupt where
// files are missing, left over or of different iterations, or where copies differ; Unsupported, by
// name, for models whose layout is not known.
TRAINING_EXPORT FiledState read_training_state(const OpenedTraining& checkpoint,
                                               const ReadOptions& options = {});

// Their names until November 2026.
inline bool is_layer_wise(const OpenedTraining& opened) { return has_training_state(opened); }
inline FiledState name_layer_wise(const OpenedTraining& opened, const ReadOptions& options = {}) {
  return read_training_state(opened, options);
}

// The random states of a result whose grid is another one than the source's.
enum class RngPolicy : uint8_t {
  Seed,  // as Megatron seeds a fresh start, from args.seed and the new ranks' places
  Keep,  // rank 0's for all
  Drop,
};

// A place in a grid of ranks: the first rank that has these coordinates.
struct GivenRank {
  std::optional<uint32_t> tp, cp, dp, pp, ep, etp;
};

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

  bool operator==(const SizeChange&) const = default;
  bool empty() const { return *this == SizeChange(); }
};

struct LayerWiseTargetSpec {
  ckpt::Format format = ckpt::Format::Torch;
  SizeChange sizes = {};
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;  // `torch` knows no other
  bool as_root = true;  // with a folder for the iteration and a tracker
  FilingChange form = {};
  RngPolicy rng = RngPolicy::Seed;
  // Of torch_dist: the files of this source stay as they are, linked beside the target's, which has
  // only what the sizes change. Must outlive the call; null: all is written.
  const OpenedTraining* linked = nullptr;
  // Of `torch`, without the file system's limits (ranks that write to one file): what this one rank
  // has in memory: a model_optim_rng.pt with the optimizer state of its own, and distrib_optim.pt
  // where state lies in flat buffers.
  std::optional<GivenRank> one_rank = {};
};

// Pure. The files as Megatron writes them in the target's grid. Throws InvalidArgument as
// target_grid() does; Unsupported for ownership other than ping-pong, and layouts other than core
// 0.16's, in `torch`, and for grids in which Megatron's ranks overwrite each other's files.
TRAINING_EXPORT ckpt::Target make_layer_wise_target(const FiledState& source,
                                                    const LayerWiseTargetSpec& spec);

}  // namespace optim
