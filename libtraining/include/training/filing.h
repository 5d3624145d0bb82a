#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/dtype.h>
#include <training/export.h>

// How Megatron files a training state: in a container, as a release does, and the state of each
// optimizer of the chain in a way of its own. What a conversion is to change of it.
namespace optim {

struct StoreHooks;
struct RankFileHooks;
// A way to file the state of one optimizer over the data-parallel ranks: a row of filings().
struct Filing {
  std::string_view name;                       // in Megatron's words, and our options'
  std::optional<ckpt::Format> container = {};  // the only one that has it; nullopt: both
  bool by_elements = false;  // a DistributedOptimizer's (ZeRO-1): ranks own ranges of elements
  bool in_order = false;     // files name no parameter: the order in flat buffers does
  bool is_written = true;    // else only read
  // What it does by itself (layouts/job/filing_hooks.h); null: the container does all.
  const StoreHooks* in_store = nullptr;
  const RankFileHooks* in_rank_files = nullptr;
  // A stored tensor as one of its parameter's shape; null: it is one.
  ckpt::TensorEntry (*as_param)(const ckpt::TensorEntry& stored,
                                const ckpt::Extents& shape) = nullptr;
  bool fits(ckpt::Format target) const {
    return is_written && container.value_or(target) == target;
  }
};
extern const Filing kWhole;     // each rank has all that it holds
extern const Filing kDealt;     // whole parameters belong to ranks
extern const Filing kByName;    // keys name the parameters
extern const Filing kBuckets;   // flat buckets of each model-parallel rank
extern const Filing kFlatFile;  // distrib_optim.pt
extern const Filing kRanges;    // up to 0.14: of flattened fragments
extern const Filing kGathered;  // up to 0.14: an object of each rank
std::span<const Filing* const> filings();

// What releases file differently: a row of releases().
struct Release {
  std::string_view name;                  // as --target-megatron says it
  std::string_view title;                 // for people
  std::array<std::string_view, 2> cores;  // releases of Megatron-Core that file so; or ""
  std::array<std::string_view, 2> also_called = {};  // main branches between releases; or ""
  bool has_common_file = true;   // common.pt; else the store has the common state
  bool distributes_adam = true;  // beside LayerWise optimizers, AdamW is a DistributedOptimizer
};
extern const Release kCore016, kCore018, kCore019;
std::span<const Release* const> releases();

struct FiledAs {
  ckpt::Format container = ckpt::Format::Torch;
  const Release* release = &kCore016;
  bool is_layer_wise = true;                   // the chain is a LayerWiseDistributedOptimizer's
  std::vector<const Filing*> optimizers = {};  // of the chain
  bool is_fully_sharded = false;               // by FSDP, and read as if a filing had it
  bool has(const Filing& filing) const {
    return std::ranges::find(optimizers, &filing) != optimizers.end();
  }
  const Filing* first_by_elements() const {  // null: none
    const auto found = std::ranges::find_if(optimizers, &Filing::by_elements);
    return found == optimizers.end() ? nullptr : *found;
  }
  bool has_by_elements() const { return first_by_elements() != nullptr; }
  // The filing of all optimizers of a chain that is no LayerWise one's; null: there is none.
  const Filing* only() const {
    const bool has_one = !is_layer_wise && !optimizers.empty() &&
                         std::ranges::count(optimizers, optimizers[0]) == std::ssize(optimizers);
    return has_one ? optimizers[0] : nullptr;
  }
  // Whether a store files any of them by hooks of its own, which numbers their keys by the chain.
  bool has_store_hooks() const { return std::ranges::any_of(optimizers, &Filing::in_store); }
  bool is_zero1() const { return only() != nullptr && only()->by_elements; }  // all of them
  bool operator==(const FiledAs&) const = default;
};

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

// What is not given stays as the source has it, where the target's container has that filing.
struct FilingChange {
  // Of optimizers whose state is a DistributedOptimizer's, or can become that; where a release
  // distributes_adam, of the half that is no Muon's.
  const Filing* filing = nullptr;
  const Release* release = nullptr;  // of torch_dist
  bool is_main_branch = false;       // `release` was given as one of its also_called
  BucketChange buckets = {};
  std::vector<StateType> state_types = {};  // of states that are to have another one
  bool empty() const {
    return filing == nullptr && release == nullptr && buckets.empty() && state_types.empty();
  }
};

}  // namespace optim
