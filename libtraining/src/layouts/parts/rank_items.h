#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/document.h>
#include <ckpt/value.h>
#include <optim/param_group.h>
#include <training/opened_training.h>
#include <training/training_state.h>

#include "args/value_place.h"
#include "grid/build_state.h"
#include "state/value_compare.h"

namespace optim {

// Collects what ranks say of an optimizer beside its parameters, groups, masters and step. What all
// ranks state equally belongs to the optimizer (`others`, `inner_others`), what only some state, or
// each otherwise, to the ranks (TrainingState::rank_items). Nothing is left out.
class RankItems {
 public:
  struct Stated {
    uint32_t rank;
    const ckpt::Document* document;  // must outlive this
    ckpt::Value value;
    Place place;
  };
  // Whether two are the same, the bytes of tensors in them included.
  using AreEqual = std::function<bool(const Stated& a, const Stated& b)>;
  explicit RankItems(AreEqual are_equal) : are_equal_(std::move(are_equal)) {}

  // The state of an optimizer, or of the one that it wraps (`is_inner`), as a rank has it.
  struct State {
    uint32_t rank = 0, optimizer = 0;
    bool is_inner = false;
    const ckpt::Document& document;
    ckpt::Value value;
    Place place;
  };
  // Every key of the state but `known`. Ranks come in ascending order, each with the state of every
  // optimizer that it has anything of. Throws Unsupported for a key that is not a string.
  void add(const State& state, std::initializer_list<std::string_view> known);
  // One that is stored alone, beside the state of an optimizer.
  void add(uint32_t optimizer, std::string_view key, Stated stated);

  // Moves what was collected into the state.
  void settle(CommonBuilder& common, TrainingState& state) const;

 private:
  struct Item {
    uint32_t optimizer;
    bool is_inner;
    std::string key;
    std::vector<Stated> stated;
  };

  Item& item_of(uint32_t optimizer, bool is_inner, std::string_view key);
  bool is_one_value(const Item& item) const;

  AreEqual are_equal_;
  std::vector<Item> items_;                       // in the order of the files
  std::map<uint32_t, std::set<uint32_t>> ranks_;  // [optimizer] that have its state
};

// Collects the parameter groups that ranks state: all ranks state the same ones; only
// `params`, and `step` where a group is empty, differ.
class RankGroups {
 public:
  RankGroups(CommonBuilder& common, TrainingState& state) : common_(common), state_(state) {}

  using GroupPlace = std::pair<uint32_t, size_t>;  // optimizer, group
  // A group as a rank states it. Those of an optimizer come in their order.
  struct Stated {
    ckpt::Value value;
    const ckpt::Document& document;  // must outlive the builder's finish()
    Place place;
    std::string rank;        // for errors
    bool is_stepped = true;  // false: no buffer of the rank's holds a parameter
  };
  // Into the chain of the state. Throws Corrupt where ranks differ.
  void add(const GroupPlace& where, const Stated& group);
  // All of an optimizer, as a list of dicts that need not be in the order of `groups`, which are
  // those of the chain. Throws Corrupt, too, where the list does not hold these groups.
  void add_list(uint32_t optimizer, const std::vector<ParamGroup>& groups, const Stated& list);

 private:
  void compare_with_other_ranks(const GroupPlace& where, const Stated& group);

  CommonBuilder& common_;
  TrainingState& state_;
  std::map<GroupPlace, StatedGroup> stated_;
};

// `inner`: what a DistributedOptimizer states of the optimizer in it, at `place`. Throws
// Unsupported where it holds state there, beside the flat buffers.
void require_state_in_buffers(const ckpt::Value& inner, const Place& place);

// A value of a rank file.
struct PlacedValue {
  ckpt::Value value;
  Place place;
};
// Whether both are the same, the bytes of tensors in them included.
bool are_equal_values(const OpenedTraining& source, const PlacedValue& a, const PlacedValue& b);

// The same for RankItems, of one checkpoint, which must outlive it.
RankItems::AreEqual equal_items_of(const OpenedTraining& source);

}  // namespace optim
