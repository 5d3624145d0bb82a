#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/convert.h>
#include <ckpt/target.h>
#include <optim/layout_export.h>
#include <optim/ownership.h>
#include <optim/param_group.h>

namespace optim {

// A checkpoint of Megatron's LayerWiseDistributedOptimizer under canonical names: one per parameter
// and layer, the same in both formats and at every data-parallel size.
//
//   NAME                              the model's tensor, as its state dict names it
//   optimizer.state.fp32_param.NAME   the fp32 master
//   optimizer.state.STATE.NAME        momentum_buffer, exp_avg, exp_avg_sq, ...
//
// A value: it refers to the files of the Checkpoint that it was made of, and holds none open.

// What the model's state dict holds under a name, in its order.
struct ModelEntry {
  enum class What : uint8_t { Param, ExtraState } what = What::Param;
  std::string name;
  uint32_t param = 0;              // Param: index into params
  std::optional<uint32_t> object;  // ExtraState that is not None: index into extra_states
};

// One parameter that the optimizer owns.
struct LayerWiseParam {
  ParamInfo info;                   // dtype of the model's tensor; attributes as Megatron sets them
  uint32_t optimizer = 0;           // place in the chain
  uint32_t group = 0;               // within that optimizer
  std::vector<std::string> states;  // names of the state tensors, in the file's order
};

// Where torch's AdamW or a fused Adam keeps its step count.
enum class StepLayout : uint8_t {
  None,      // Muon
  PerParam,  // a 0-dim tensor in each parameter's state; torch_dist: one `common_step`
  PerGroup,  // an integer in each group that is not empty on the rank
};

struct LayerWiseOptimizer {
  std::vector<ckpt::NodeId> groups;  // in `common`: dicts without `params`, with `step` if PerGroup
  StepLayout step_layout = StepLayout::None;
  ckpt::DType step_dtype = ckpt::DType::Float32;  // PerParam
  std::string step_bytes;                         // PerParam: the value that all parameters share
  // Further keys of its state, e.g. grad_scaler, and of the wrapped optimizer's state in it.
  std::vector<std::pair<std::string, ckpt::NodeId>> others, inner_others;
};

// A further key of an optimizer's state in `torch` files that not all ranks state, and equally.
struct RankItem {
  std::string name;  // "optimizer.0/KEY"; "optimizer.0/optimizer/KEY" of the wrapped optimizer
  std::string key;
  uint32_t optimizer = 0;                                 // place in the chain
  bool is_inner = false;                                  // of the wrapped optimizer's state
  std::vector<std::pair<uint32_t, ckpt::NodeId>> values;  // by rank; in `common`
};

struct LayerWiseCheckpoint {
  ckpt::Format format = ckpt::Format::Torch;  // of the source
  ckpt::Catalog tensors;                      // canonical keys; chunks lie in the source's files
  std::vector<ModelEntry> model;
  std::vector<LayerWiseParam> params;  // in model order
  std::vector<LayerWiseOptimizer> optimizers;

  // {args, checkpoint_version, iteration, opt_param_scheduler, rng_state: [...], ...} in the order
  // of the file; no model, no optimizer, no content_metadata.
  ckpt::Document common;
  std::optional<ckpt::NodeId>
      model_metadata;  // `_metadata` of the model's OrderedDict, in `common`
  std::vector<std::shared_ptr<const ckpt::Document>> extra_states;
  // Attributes of wrapped tensors, as their masters have them, by canonical key; in `common`. Only
  // of torch sources.
  std::map<std::string, ckpt::NodeId> attributes;
  std::vector<RankItem> rank_items;
  // Objects of torch_dist that belong to the ranks of one run, by key: rerun_state_machine_state.
  std::vector<std::pair<std::string, std::shared_ptr<const ckpt::Document>>> rank_objects;

  ParallelSizes sizes;  // from args
  uint32_t layer_count = 0;
  bool gated_linear_unit = false;             // SwiGLU: torch_dist stores linear_fc1 in two halves
  bool layer_norm_renamed = false;            // transformer_impl 'local', see megatron_keys
  bool layers_stacked = true;                 // torch_dist has one tensor for all layers
  std::string folder_name;                    // iter_0000003, release
  std::vector<ckpt::NotCarried> not_carried;  // by any target

  OPTIM_LAYOUT_EXPORT ckpt::Value args() const;  // the attributes of args, a Dict
};

// True for torch folders with layer_wise_optimizer_*.pt and torch_dist folders whose args say so.
OPTIM_LAYOUT_EXPORT bool is_layer_wise(const ckpt::Checkpoint& checkpoint);

// Computes the canonical view. `torch` files hold no names: the ping-pong deal is replayed from the
// model's order and must give each rank file's groups, counts and shapes. Throws Corrupt where
// files are missing, left over or of different iterations; Unsupported, by name, for parallel sizes
// above 1 other than data parallelism and for models whose layout is not known.
OPTIM_LAYOUT_EXPORT LayerWiseCheckpoint name_layer_wise(const ckpt::Checkpoint& checkpoint);

// A parameter whose master rounds to the weights of others, too: its name is right by the deal
// alone.
struct AmbiguousParam {
  std::string name;
  std::vector<std::string> also_fits;
};

struct ProofOptions {
  unsigned threads = 0;  // 0: one per core
  // One of several processes proves its share of the parameters, and sees what is ambiguous among
  // these alone.
  ckpt::Share share = {};
  std::stop_token stop = {};  // a requested stop ends in Error(IoFailure, "cancelled")
  // Of the masters and weights that are read; from any thread, one call at a time.
  std::function<void(const ckpt::Progress&)> on_progress = {};
};

// Proves by content that each master belongs to its name: rounded to the weight's type it equals
// the weight bit for bit. Streams all masters and weights once. Throws Corrupt with file and key.
OPTIM_LAYOUT_EXPORT std::vector<AmbiguousParam> prove_assignment(
    const LayerWiseCheckpoint& checkpoint, const ckpt::Checkpoint& source,
    const ProofOptions& options = {});

// How Megatron lays out a torch_dist folder.
enum class StoreLayout : uint8_t {
  Seed,        // April 2026: common.pt, one LayerWise optimizer for all
  August2026,  // common state in the store, Muon beside a fully reshardable DistributedOptimizer
};

struct LayerWiseTargetSpec {
  ckpt::Format format = ckpt::Format::Torch;
  uint32_t data_parallel = 0;                             // 0: as the source
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;  // `torch` knows no other
  bool as_root = true;                     // with a folder for the iteration and a tracker
  StoreLayout layout = StoreLayout::Seed;  // of torch_dist
};

// Pure. The files as Megatron writes them at that data-parallel size. Throws Unsupported for
// ownership other than ping-pong, and layouts other than the seed's, in `torch`.
OPTIM_LAYOUT_EXPORT ckpt::Target make_layer_wise_target(const LayerWiseCheckpoint& source,
                                                        const LayerWiseTargetSpec& spec);

struct ConvertOptions : ckpt::ConvertOptions {
  // The destination is a checkpoint root that exists: it gets an iteration, and its tracker names
  // that unless it names a later one.
  bool into = false;
  // reshard() of torch_dist alone: the new folder shares the source's files, but for a new common
  // state. Megatron finds tensors by name, so that their files may stay as they are.
  bool link = false;
  std::optional<uint32_t> data_parallel;  // default: the source's
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;
  StoreLayout layout = StoreLayout::Seed;
};

struct ConvertReport : ckpt::ConvertReport {
  uint64_t linked_bytes = 0;
  bool layer_wise = false;
  uint32_t source_data_parallel = 0, target_data_parallel = 0;  // layer-wise only
  std::vector<AmbiguousParam> ambiguous;                        // layer-wise only
};

// Where ConvertOptions::into puts a source: ROOT/iter_0000003. Throws InvalidArgument for a source
// that is no iteration.
OPTIM_LAYOUT_EXPORT std::filesystem::path place_in_root(const std::filesystem::path& root,
                                                        const ckpt::Checkpoint& source);

// The one call that ckpt-convert makes: Megatron LayerWise checkpoints here, plain state dicts
// through ckpt::make_target. The destination is absent or complete, the source never touched.
// Throws what the functions above throw; Unsupported under options.strict where something is not
// carried or a parameter is ambiguous; AlreadyExists.
OPTIM_LAYOUT_EXPORT ConvertReport convert(const std::filesystem::path& source,
                                          const std::filesystem::path& destination,
                                          const ConvertOptions& options);

// The one call that `reshard` makes: options.data_parallel is required, options.format must stay
// the source's. Refuses what is not LayerWise (Unsupported) and data_parallel 0 (InvalidArgument).
OPTIM_LAYOUT_EXPORT ConvertReport reshard(const std::filesystem::path& source,
                                          const std::filesystem::path& destination,
                                          const ConvertOptions& options);

}  // namespace optim
