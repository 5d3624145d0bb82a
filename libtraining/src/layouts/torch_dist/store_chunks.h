#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <ckpt/torch_dist_target.h>

#include "layouts/job/layer_wise_target.h"

// Tensors of a torch_dist folder: which chunks there are, and which rank writes each.
namespace optim {

// The ranks that hold one copy of a part of the model, and those that own its state.
class HoldingRanks {
 public:
  explicit HoldingRanks(const std::vector<WorldRank>& ranks) {
    for (const WorldRank& rank : ranks) {
      const RankCoordinates& at = rank.at;
      dense_[{at.tp, at.pp}].push_back(rank.rank);
      experts_[{at.etp, at.ep, at.pp}].push_back(rank.rank);
    }
  }
  const std::vector<uint32_t>& of_dense(uint32_t tp, uint32_t pp) const {
    return dense_.at({tp, pp});
  }
  const std::vector<uint32_t>& of_expert(uint32_t etp, uint32_t ep, uint32_t pp) const {
    return experts_.at({etp, ep, pp});
  }

 private:
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> dense_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<uint32_t>> experts_;
};

// The chunks of model and optimizer, as the ranks of the target's grid store them: each owner its
// optimizer state, the model shared out so that ranks write equally much. A tensor of which nobody
// knows how tensor parallel ranks share it keeps the chunks that it has.
void add_store_chunks(const TargetJob& job, const HoldingRanks& ranks, ckpt::DistSpec& spec);

}  // namespace optim
