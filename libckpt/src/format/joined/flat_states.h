#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>

#include "format/values/rank_tensor.h"

namespace ckpt {

// Which part of FSDP's tensors each rank has: one of `parts`, replicas the same.
struct RankParts {
  uint64_t parts = 0;
  std::map<uint64_t, uint64_t> of_rank;
  bool are_known = true;  // no tensor is cut otherwise

  void add(uint64_t rank, const RankTensor& tensor);
};

// What FSDP1's optimizer.state_dict() has of flat parameters (flat_units.h).
struct FlatStates {
  struct Unit {
    std::optional<uint64_t> part_elements;  // nullopt: it has no state
    uint64_t elements = 0;                  // 0: not known
  };
  std::vector<Unit> units;         // by their numbers
  std::vector<std::string> names;  // of flat states: "exp_avg"
  std::string problem;             // why sizes are not known

  // Of the state at "/optim/state/0/exp_avg"; null: it is none.
  const Unit* at(std::string_view pointer) const;
  std::string words() const;  // behind "files of 3 ranks of FSDP"
};
// `optimizers`: what files of ranks hold. `model`: its tensors in parts, in the order of the state
// dict. No names: there are no flat states.
FlatStates find_flat_states(const std::vector<Value>& optimizers,
                            const std::vector<TensorEntry>& model, const RankParts& parts);
// Of an optimizer's state dict, by its groups. 0: their numbers do not ascend from group to group.
size_t count_params(const Value& optimizer);
// Why these would not be known again from so many parts; empty: they would.
std::string problem_of_parts(const FlatStates& states, const std::vector<TensorEntry>& model,
                             uint64_t parts);

}  // namespace ckpt
