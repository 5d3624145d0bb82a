#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/value.h>
#include <training/training_state.h>

#include "args/value_place.h"
#include "grid/flat_buffers.h"
#include "layouts/job/filing_hooks.h"
#include "layouts/parts/flat_states.h"

// The state of DistributedOptimizers in a torch_dist folder, form dp_reshardable: for each of the
// ranks that hold a copy of the model, of number K, and of each optimizer of a chain
//
//   [chained_I.]optimizer.distributed.dp_group_idx_K.gbuf_idx_G.dtype_(T, U).bucket_idx_B.STATE
//   [chained_I.]optimizer.distributed.dp_group_idx_K.{optimizer,per_bucket_numel,...}/shard_0_1
//
// A tensor is the bucket without the padding at its end; what lies between its parameters is memory
// that nobody wrote. Up to 0.14 also form dp_zero_gather_scatter, without tensors: what the first
// of the ranks that share a copy has gathered (GatheredBuffers), and the groups,
//
//   [chained_I.]optimizer.distributed.dp_group_idx_K.{param_state,optimizer}/shard_0_1
namespace optim {

struct StoredBucket {
  std::string dtypes;  // "(torch.bfloat16, torch.float32)"
  FlatTensors tensors;
};

// Of an optimizer in one copy of the model.
struct StoredCopy {
  std::string prefix;  // of its keys, up to the number of the copy
  std::map<std::pair<uint32_t, uint32_t>, StoredBucket> buckets;  // [gbuf_idx, bucket_idx]
  std::map<std::string, const ckpt::ObjectEntry*, std::less<>> objects;
};

// All of a folder, by their keys. Points into the checkpoint.
class FlatBuckets final : public StoredOptimizers {
 public:
  // Throws Corrupt for a key that is not one of these, Unsupported for buffers of several types.
  explicit FlatBuckets(const ckpt::Catalog& catalog);

  using Place = std::pair<uint32_t, uint32_t>;  // optimizer of the chain, number of the copy
  const std::map<Place, StoredCopy>& copies() const { return copies_; }
  std::map<uint32_t, const Filing*> optimizers() const override;
  // Throws Corrupt where keys, sizes or copies are not those of the layout that args give,
  // Unsupported where the model's order of parameters is not known.
  void read(const StoreInto& into) const override;

 private:
  StoredCopy& copy_of(const std::string& key, std::string_view& rest);
  void add(const ckpt::TensorEntry& tensor);
  void add(const ckpt::ObjectEntry& object);

  std::map<Place, StoredCopy> copies_;
};

// The state of a DistributedOptimizer that the first of the ranks that share its buffers gathers,
// in distrib_optim.pt and up to 0.14 in an object of torch_dist:
//
//   {buckets_coalesced: True, GBUF: {(dtype, gradient's dtype):
//     {param: ..., exp_avg: ..., exp_avg_sq: ..., numel_unpadded: N}}}
//
// A buffer's buckets lie one behind the other, without the padding at their ends.
class GatheredBuffers {
 public:
  // Both must outlive it.
  GatheredBuffers(const TrainingState& state, FlatStates& states)
      : state_(state), states_(states) {}

  // The tensor at a place of the value. It must outlive the joining of the states. Throws Corrupt
  // where there is none.
  using TensorAt = std::function<const ckpt::TensorEntry&(const Place& place)>;
  // Of one optimizer, as a rank that gathered it has it.
  struct Stored {
    const RankCoordinates& rank;
    ckpt::Value value;
    Place place;
    TensorAt tensor_at;
  };
  // Adds the parts of parameters to the states. `buffers`: those of the rank, whose sizes must be
  // those that are stated. Throws Corrupt where they are not.
  void read(const Stored& stored, const std::vector<FlatBuffer>& buffers);

 private:
  void read_buffer(const Stored& stored, size_t number, const FlatBuffer& buffer);
  const FlatTensors& tensors_at(const Stored& stored, const Place& place, const ckpt::Value& value,
                                const FlatLayout& layout);

  const TrainingState& state_;
  FlatStates& states_;
  std::deque<FlatTensors> tensors_;
};

}  // namespace optim
