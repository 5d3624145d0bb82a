#pragma once

#include <cstdint>

#include <ckpt/checkpoint.h>
#include <ckpt/target.h>
#include <optim/layout_export.h>
#include <optim/ownership.h>
#include <optim/training_state.h>

// Checkpoints of Megatron's LayerWiseDistributedOptimizer.
namespace optim {

// True for torch folders with layer_wise_optimizer_*.pt and torch_dist folders whose args say so.
OPTIM_LAYOUT_EXPORT bool is_layer_wise(const ckpt::Checkpoint& checkpoint);

// Computes the canonical view. `torch` files hold no names: the ping-pong deal is replayed from the
// model's order and must give each rank file's groups, counts and shapes. Throws Corrupt where
// files are missing, left over or of different iterations; Unsupported, by name, for parallel sizes
// above 1 other than data parallelism and for models whose layout is not known.
OPTIM_LAYOUT_EXPORT TrainingState name_layer_wise(const ckpt::Checkpoint& checkpoint);

// How Megatron lays out a torch_dist folder.
enum class StoreLayout : uint8_t {
  April2026,   // common.pt, one LayerWise optimizer for all
  August2026,  // common state in the store, Muon beside a fully reshardable DistributedOptimizer
};

struct LayerWiseTargetSpec {
  ckpt::Format format = ckpt::Format::Torch;
  uint32_t data_parallel = 0;                             // 0: as the source
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;  // `torch` knows no other
  bool as_root = true;                          // with a folder for the iteration and a tracker
  StoreLayout layout = StoreLayout::April2026;  // of torch_dist
};

// Pure. The files as Megatron writes them at that data-parallel size. Throws Unsupported for
// ownership other than ping-pong, and layouts other than April 2026's, in
// `torch`.
OPTIM_LAYOUT_EXPORT ckpt::Target make_layer_wise_target(const TrainingState& source,
                                                        const LayerWiseTargetSpec& spec);

}  // namespace optim
