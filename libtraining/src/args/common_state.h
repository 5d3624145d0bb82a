#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <ckpt/checkpoint.h>
#include <training/filing.h>
#include <training/opened_training.h>

namespace optim {

// The object that holds the common state since core 0.19.
inline constexpr std::string_view kCommonStateKey = "common_state/shard_0_1";

// What a Megatron torch_dist folder does not shard: args, schedule, parameter groups. In common.pt,
// or since core 0.19 in the store, as an object that is a list of one dictionary.
struct CommonState {
  std::string file;                                   // for errors: common.pt, .metadata
  std::string key;                                    // for errors: the object
  std::shared_ptr<const ckpt::Document> document;     // its root is the dictionary
  std::string config = {};                            // of Megatron Bridge, where args come from it
  std::shared_ptr<const ckpt::Catalog> catalog = {};  // Megatron's keys, where NeMo's are others

  // Throws Corrupt, of what lies at a pointer below its root.
  [[noreturn]] void corrupt(const std::string& pointer, std::string problem) const;
};

// Whether it is the state dicts of a run of Megatron's, flattened as torch.distributed.checkpoint
// does (--ckpt-format torch_dcp, fsdp_dtensor): an object for each value of the common state.
bool holds_state_dicts(const ckpt::Catalog& catalog);

// As OpenedTraining::common_state(), which everybody else asks. Points into the checkpoint.
std::optional<CommonState> read_common_state(const ckpt::Checkpoint& checkpoint);

// Its catalog, with Megatron's keys.
const ckpt::Catalog& keys_of(const OpenedTraining& checkpoint);

// How a DistributedOptimizer, alone or in a chain, says that its state is filed:
// "fully_reshardable", "dp_reshardable", ... Empty where nothing says so.
std::string stated_sharding(const ckpt::Value& common_root);

// The first release that files LayerWise state so: in common.pt or in the store, and with an
// optimizer of the chain that says that it is a DistributedOptimizer or without.
const Release* release_of(bool has_common_file, const ckpt::Value& common_root);

// What a checkpoint is called, by the optimizer in it and its parallel sizes: "a
// DistributedOptimizer (ZeRO-1, dp_reshardable) checkpoint with TP 2 and PP 2".
std::string kind_of_checkpoint(const OpenedTraining& checkpoint);

// What still works on a checkpoint that is refused: for hints.
std::string what_works_on(const OpenedTraining& checkpoint);

// Throws Unsupported for a checkpoint that is not LayerWise, by its kind; `expected` as in
// "expected a LayerWise checkpoint".
[[noreturn]] void refuse_kind(const OpenedTraining& checkpoint, std::string_view expected);

}  // namespace optim
