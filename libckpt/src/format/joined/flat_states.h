#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>

#include "format/joined/flat_params.h"
#include "format/values/rank_tensor.h"

namespace ckpt {

// Which shard of FSDP's tensors each rank has: one of `parts`, replicas the same.
struct RankShards {
  uint64_t parts = 0;
  std::map<uint64_t, uint64_t> of_rank;
  bool are_known = true;  // no tensor is cut otherwise

  void add(uint64_t rank, const RankTensor& tensor);
};

// What FSDP1's optimizer.state_dict() has of flat parameters (flat_units.h), or, with
// use_orig_params, of parts of the model's (flat_params.h).
struct FlatStates {
  struct Unit {                      // a flat parameter, or one of the model's
    std::vector<uint64_t> lengths;   // of its rows on each part; none: it has no state
    std::optional<Extents> shape{};  // of all rows without what fills them up; nullopt: not known

    uint64_t first(uint64_t part) const;  // of the elements of a row
  };
  struct Params {  // those of the model, in the order of its state dict
    std::vector<UnitParam> model;
    std::vector<std::vector<uint64_t>> counts;  // FlatPlaces
    std::vector<size_t> may_lack, of_numbers;
  };
  std::vector<Unit> units;         // by their numbers
  std::vector<std::string> names;  // of flat states: "exp_avg"
  std::string problem;             // why sizes are not known
  std::optional<Params> params;    // nullopt: units are flat parameters

  // Of the state at "/optim/state/0/exp_avg"; null: it is none.
  const Unit* at(std::string_view pointer) const;
  std::string words() const;  // behind "files of 3 ranks of FSDP"
  // Of `params`, by number, for so many parts.
  FlatPlaces places_in(uint64_t parts) const;
};
// `optimizers`: what files of ranks hold, by rank. `model`: its tensors in parts, in the order of
// the state dict. No names: there are no flat states.
using RankOptimizers = std::vector<std::pair<uint64_t, Value>>;
FlatStates find_flat_states(const RankOptimizers& optimizers, const std::vector<TensorEntry>& model,
                            const RankShards& shards);
// Of an optimizer's state dict, by its groups. 0: their numbers do not ascend from group to group.
size_t count_params(const Value& optimizer);
// Why flat parameters would not be known again from so many parts; empty: they would.
std::string problem_of_parts(const FlatStates& states, const std::vector<TensorEntry>& model,
                             uint64_t parts);

}  // namespace ckpt
