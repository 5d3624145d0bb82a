#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/value.h>
#include <training/training_state.h>

#include "args/value_place.h"
#include "grid/layer_wise_view.h"

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

  // Moves what was collected into the view.
  void settle(CommonBuilder& common, TrainingState& view) const;

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

}  // namespace optim
