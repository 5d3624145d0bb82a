#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/value.h>
#include <optim/training_state.h>

#include "grid/layer_wise_view.h"
#include "args/value_place.h"

namespace optim {

// A value of a rank file.
struct PlacedValue {
  ckpt::Value value;
  Place place;
};
// Whether both are the same, the bytes of tensors in them included.
bool are_equal_values(const ckpt::Checkpoint& source, const PlacedValue& a, const PlacedValue& b);

// Collects what rank files say of an optimizer beside its parameters, groups, masters and step.
// What all ranks state equally belongs to the optimizer (`others`, `inner_others`), what only some
// state, or each otherwise, to the ranks (TrainingState::rank_items). Nothing is left out.
class RankItems {
 public:
  explicit RankItems(const ckpt::Checkpoint& source) : source_(source) {}

  // The state of an optimizer, or of the one that it wraps (`is_inner`), in the file of a rank.
  struct State {
    uint32_t rank = 0, optimizer = 0;
    bool is_inner = false;
    const ckpt::Document& document;
    ckpt::Value value;
    Place place;
  };
  // Every key of the state but `known`. Ranks come in ascending order. Throws Unsupported for a key
  // that is not a string.
  void add(const State& state, std::initializer_list<std::string_view> known);

  // Moves what was collected into the view. `rank_count`: of the whole checkpoint.
  void settle(uint32_t rank_count, CommonBuilder& common, TrainingState& view) const;

 private:
  struct Stated {
    uint32_t rank;
    const ckpt::Document* document;
    ckpt::NodeId node;
    Place place;
  };
  struct Item {
    uint32_t optimizer;
    bool is_inner;
    std::string key;
    std::vector<Stated> stated;
  };

  Item& item_of(const State& state, std::string_view key);
  bool are_equal(const std::vector<Stated>& stated) const;

  const ckpt::Checkpoint& source_;
  std::vector<Item> items_;  // in the order of the files
};

}  // namespace optim
