#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "grid/rank_files.h"

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

}  // namespace optim
