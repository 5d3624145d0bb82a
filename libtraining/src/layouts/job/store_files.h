#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/torch_dist_target.h>

#include "grid/rank_files.h"
#include "layouts/job/layer_wise_target.h"

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

// A torch_dist folder on its way: what is added to `spec` gets into its files.
struct StoreFiles {
  const TargetJob& job;
  const HoldingRanks& ranks;
  ckpt::DistSpec& spec;

  // What torch.save writes of `root`; an object is given to it in a list.
  void add_archive(std::string key, ckpt::ArchiveBuilder& archive, ckpt::NodeId root,
                   uint32_t writer) const;
  void add_object(std::string key, ckpt::ArchiveBuilder& archive, ckpt::NodeId object,
                  uint32_t writer) const;
};

// What the optimizer that steps keeps: its groups, and where it counts steps beside them.
ckpt::NodeId write_wrapped(const TargetJob& job, uint32_t optimizer, ckpt::ArchiveBuilder& archive);

}  // namespace optim
