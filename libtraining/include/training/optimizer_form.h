#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/dtype.h>

// How Megatron files the state of optimizers, and what a conversion is to change of it.
namespace optim {

// How it is filed over the data-parallel ranks, in Megatron's words.
enum class OptimizerSharding : uint8_t {
  None,       // each rank has the state of all that it holds: Float16Optimizer
  LayerWise,  // whole parameters belong to ranks
  // Of DistributedOptimizer (ZeRO-1), whose ranks own ranges of elements:
  FullyReshardable,     // torch_dist: keys name the parameters
  DpReshardable,        // torch_dist: flat buckets of each model-parallel rank
  FlatFile,             // torch: distrib_optim.pt
  FlattenedRange,       // torch_dist up to 0.14, fully_sharded_model_space: only read
  DpZeroGatherScatter,  // torch_dist up to 0.14, an object of each rank: only read
};

// How Megatron lays out a torch_dist folder.
enum class StoreLayout : uint8_t {
  April2026,   // common.pt, one LayerWise optimizer for all
  Core018,     // Megatron-Core 0.18: common.pt, Muon beside a DistributedOptimizer
  August2026,  // common state in the store, Muon beside a DistributedOptimizer
};
inline bool has_common_file(StoreLayout layout) { return layout != StoreLayout::August2026; }
// Of LayerWise state: whether the AdamW of a chain is a DistributedOptimizer.
inline bool has_halves(StoreLayout layout) { return layout != StoreLayout::April2026; }

// Sizes of the buckets of flat buffers, as Megatron's arguments of a run give them.
struct BucketChange {
  enum class Size : uint8_t {
    AsSource,
    One,      // a bucket for each model chunk, as without --overlap-grad-reduce
    Default,  // of --overlap-grad-reduce: max(40e6, 1e6 * data-parallel ranks) elements
    Given,    // --ddp-bucket-size
  };
  Size size = Size::AsSource;
  uint64_t element_count = 0;            // Given
  bool pad_for_high_nccl_busbw = false;  // --ddp-pad-buckets-for-high-nccl-busbw; or as the source
  bool empty() const { return size == Size::AsSource && !pad_for_high_nccl_busbw; }
};

// "exp_avg" in float32.
struct StateType {
  std::string name;
  ckpt::DType dtype = ckpt::DType::Float32;
};

// What is not given stays as the source has it, where the target's container has that form.
struct FormChange {
  // Of optimizers whose state is a DistributedOptimizer's, or can become that; of LayerWise ones of
  // August 2026 the half that is no Muon's.
  std::optional<OptimizerSharding> sharding = {};
  std::optional<StoreLayout> layout = {};  // of torch_dist
  BucketChange buckets = {};
  std::vector<StateType> state_types = {};  // of states that are to have another one
  bool empty() const { return !sharding && !layout && buckets.empty() && state_types.empty(); }
};

}  // namespace optim
