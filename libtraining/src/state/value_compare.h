#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ckpt/value_tree.h>
#include <training/chained_optimizer_state.h>

namespace optim {

// nullopt when both values say the same, else where they differ (an RFC 6901 pointer; "" for the
// values themselves). Dictionaries must agree in order, too: Megatron zips them. Tensors are equal
// when dtype and shape are. No recursion.
std::optional<std::string> first_difference(const ckpt::Value& a, const ckpt::Value& b);

// Whether two optimizers of a chain say the same beside their groups. `tree`: of their values.
bool are_alike(const ckpt::ValueTree& tree, const ChainedOptimizerState& a,
               const ChainedOptimizerState& b);

// --- parameter groups ---

// A parameter group as one rank states it: a dict.
struct StatedGroup {
  ckpt::Value group;
  std::string rank;        // rank_name()
  bool is_stepped = true;  // false: the rank has no parameter that the optimizer steps
};

struct GroupDifference {
  std::string key;  // of the setting
  std::string problem;
};

// "rank 1 of mp_rank_00" for mp_rank_00/layer_wise_optimizer_1.pt, else the path itself.
std::string rank_name(std::string_view path);

// Whether a rank holds none of the group's parameters, or none of them is stepped: it may lack its
// step.
bool is_unstepped(const StatedGroup& group);

// The first setting that one of two ranks lacks or has otherwise; of all but `params`. The values
// of `step` are compared elsewhere.
std::optional<GroupDifference> group_difference(const StatedGroup& known, const StatedGroup& own);

}  // namespace optim
