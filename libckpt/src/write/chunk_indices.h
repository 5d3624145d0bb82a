#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include <ckpt/plan.h>

#include "model/overlap_index.h"

namespace ckpt {

// Indices of the copies of records that many windows show, so that not each window makes its own:
// only the records that are at work are kept. Safe to use from many threads.
class ChunkIndices {
 public:
  explicit ChunkIndices(unsigned threads) : kept_max_(2 * size_t{threads}) {}

  // Of the copies' overlaps; null for records of few copies.
  std::shared_ptr<const OverlapIndex> index_of(const RecordPlan& record);

 private:
  using Entry = std::pair<const RecordPlan*, std::shared_ptr<const OverlapIndex>>;

  const size_t kept_max_;  // each thread may be at the end of one record and the start of another
  std::mutex mutex_;
  std::deque<Entry> recent_;
};

}  // namespace ckpt
