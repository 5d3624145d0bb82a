#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/document.h>
#include <optim/param_group.h>
#include <training/training_state.h>

#include "args/value_place.h"
#include "grid/layer_wise_view.h"
#include "state/value_compare.h"

namespace optim {

// Collects the parameter groups that ranks state: all ranks state the same ones; only
// `params`, and `step` where a group is empty, differ.
class RankGroups {
 public:
  RankGroups(CommonBuilder& common, TrainingState& view) : common_(common), view_(view) {}

  using GroupPlace = std::pair<uint32_t, size_t>;  // optimizer, group
  // A group as a rank states it. Those of an optimizer come in their order.
  struct Stated {
    ckpt::Value value;
    const ckpt::Document& document;  // must outlive the builder's finish()
    Place place;
    std::string rank;  // for errors
  };
  // Into the chain of the view. Throws Corrupt where ranks differ.
  void add(const GroupPlace& where, const Stated& group);
  // All of an optimizer, as a list of dicts that need not be in the order of `groups`, which are
  // those of the chain. Throws Corrupt, too, where the list does not hold these groups.
  void add_list(uint32_t optimizer, const std::vector<ParamGroup>& groups, const Stated& list);

 private:
  void compare_with_other_ranks(const GroupPlace& where, const Stated& group);

  CommonBuilder& common_;
  TrainingState& view_;
  std::map<GroupPlace, StatedGroup> stated_;
};

// `inner`: what a DistributedOptimizer states of the optimizer in it, at `place`. Throws
// Unsupported where it holds state there, beside the flat buffers.
void require_state_in_buffers(const ckpt::Value& inner, const Place& place);

}  // namespace optim
