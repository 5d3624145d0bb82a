#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ckpt/torch_dist_target.h>

#include "layouts/job/flat_records.h"
#include "layouts/torch_dist/store_chunks.h"

// Flat buckets as a torch_dist folder holds them (flat_buckets.h has the keys): chunks as ranks own
// them, cut where parameters end.
namespace optim {

// An optimizer in one of the copies of the model that ranks share.
struct BucketedCopy {
  uint32_t optimizer = 0;
  std::string prefix;       // of its keys: "chained_0.optimizer.distributed.dp_group_idx_0."
  uint32_t first_rank = 0;  // of those that share it, which writes its objects
  std::vector<FlatBuffer> buffers;
};

class FlatBucketChunks {
 public:
  FlatBucketChunks(const TargetJob& job, const HoldingRanks& ranks, ckpt::DistSpec& spec)
      : job_(job), ranks_(ranks), spec_(spec), target_(job) {}

  // The chunks of all copies; what is told of each lets the caller add its objects.
  void run(const std::function<void(const BucketedCopy& copy)>& on_copy);

  // [{(dtype, gradient's dtype): [elements of each bucket]}] of a copy, with the padding at the end
  // of buckets or without.
  ckpt::NodeId add_sizes(ckpt::ValueTree& tree, const BucketedCopy& copy, bool is_padded) const;

 private:
  void add_buffer(const BucketedCopy& copy, uint32_t number, const RankCoordinates& at);
  struct Bucket;
  void add_state(const Bucket& bucket, const FlatState& state);
  void add_part(const Bucket& bucket, const FlatState& state, uint32_t rank_number);

  const TargetJob& job_;
  const HoldingRanks& ranks_;
  ckpt::DistSpec& spec_;
  TargetBuffers target_;
};

}  // namespace optim
