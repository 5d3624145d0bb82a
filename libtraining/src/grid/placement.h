#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/box.h>
#include <optim/ownership.h>
#include <training/training_state.h>

#include "model/model_rules.h"
#include "model/tensor_names.h"
#include "parallel/rank_grid.h"
#include "parallel/stages.h"

// Where the parts of a model lie in a grid of ranks. Pure: from the training state's names, shapes
// and splits, and the grid.
namespace optim {

// What a pipeline stage holds in one of its model chunks.
struct HeldEntry {
  uint32_t entry = 0;  // index into TrainingState::model
  uint32_t chunk = 0;  // of the stage
};

class Placement {
 public:
  // `state` must outlive it. `vocabulary_rows`: of embedding and output layer in this grid; 0: as
  // stored. Throws Error(InvalidArgument) for a grid that the model cannot be divided over.
  Placement(const TrainingState& state, const RunGrid& grid, uint64_t vocabulary_rows = 0);

  const RunGrid& grid() const { return grid_; }
  // In the order in which data passes them, see model_chunks().
  const std::vector<ModelChunk>& chunks() const { return chunks_; }

  // What a rank of this stage and expert parallel rank holds, in the order in which the model
  // registers it, chunk after chunk.
  std::vector<HeldEntry> held(uint32_t stage, uint32_t expert_rank) const;
  // Throws Unsupported for an entry of which neither a rule nor its name says which stage has it;
  // without, it counts as the first one's.
  void require_known_stages() const;
  std::string name_on_rank(const HeldEntry& held, uint32_t stage, uint32_t expert_rank) const;

  bool is_expert(uint32_t param) const { return experts_[param].has_value(); }
  uint32_t expert_rank(uint32_t param) const;
  // Of the tensor parallel ranks (of an expert's parameter the expert tensor parallel ones) that
  // hold parts of it; 1: each holds all.
  uint32_t tensor_ranks(uint32_t param) const;
  uint32_t tensor_rank(uint32_t param, const RankCoordinates& rank) const;
  // Those that hold a copy, the one whose copy torch_dist stores first.
  std::span<const uint32_t> chunks_of_entry(uint32_t entry) const {
    return std::span(places_).subspan(starts_[entry], starts_[entry + 1] - starts_[entry]);
  }
  // The stage whose copy of an entry torch_dist stores.
  uint32_t stage_of_entry(uint32_t entry) const;
  // Whether what this stage holds is that copy.
  bool is_first_copy(const HeldEntry& held, uint32_t stage) const;

  // Shape of a parameter, or of a state of its shape, in this grid: more or fewer rows of
  // vocabulary than stored.
  ckpt::Extents shape_of(uint32_t param) const;
  // The boxes of that shape which a tensor parallel rank holds, in the order of its own tensor.
  // Throws Error(InvalidArgument) where the ranks do not divide it, Unsupported where its split is
  // not known.
  std::vector<ckpt::Box> boxes(uint32_t param, uint32_t tensor_rank) const;
  // The same, each section's block apart, as torch_dist stores them.
  std::vector<ckpt::Box> blocks(uint32_t param, uint32_t tensor_rank) const;
  ckpt::Extents shape_on_rank(uint32_t param) const;

 private:
  void place_entries();
  void add_chunks_of(const std::string& name);
  bool is_in(const ModelChunk& chunk, const std::string& name) const;
  void put_copy_at_output(std::vector<uint32_t>& entries) const;
  Split split_of_param(uint32_t param) const;

  const TrainingState& state_;
  RunGrid grid_;
  uint64_t vocabulary_rows_;
  std::vector<ModelChunk> chunks_;
  std::vector<uint32_t> places_, starts_ = {0};  // chunks of all entries; [entry] where its own are
  std::vector<uint32_t> unknown_;                // entries
  std::vector<std::vector<uint32_t>> entries_;   // [chunk] in order of registration
  std::vector<std::optional<uint32_t>> experts_;             // [param] the expert's number
  std::vector<bool> has_vocabulary_;                         // [param] rows that this grid changes
  std::vector<std::optional<uint32_t>> experts_of_entries_;  // [entry]
};

// The built-in model rules, or those that the state was read with.
const ModelRules& rules_of(const TrainingState& state);

// The rows of a name's tensor are the vocabulary's.
bool is_vocabulary(const TrainingState& state, const std::string& name);
// A module keeps it beside its parameters, and no optimizer steps it.
bool is_buffer(const TrainingState& state, const std::string& name);
// A parameter that no optimizer steps, in a state that has optimizers.
bool is_frozen(const TrainingState& state, const TrainedParam& param);

// Puts the model's entries in the order in which the model registers them. Names without a rule
// come behind those of their layer, or at the end, and the first is unknown_order.
void order_by_rules(TrainingState& state);

// What a rank of this expert parallel rank has in a chunk of the model.
RankPart rank_part(const TrainingState& state, const RunGrid& grid, const ModelChunk& chunk,
                   uint32_t expert_rank);

// Who owns which optimizer state in a grid of ranks: Megatron deals the parameters of each
// pipeline stage and expert parallel rank over the ranks that share them. Pure.
// Of a rank: parameters, as HeldEntry, of each group, counted over all optimizers, in local order.
using OwnedGroups = std::vector<std::vector<HeldEntry>>;

class RankDeals {
 public:
  struct Policy {
    bool is_sharded = true;  // parameters are dealt; else each rank owns all that it holds
    OwnershipPolicy ownership = OwnershipPolicy::PingPong;
  };
  // `groups`: of all parameters of `state`, as group_params() makes them. Where the state was
  // joined of ranks already (its splits are known), shapes on a rank follow from the placement;
  // before, they are what the weights in `state` have. What is given must outlive it.
  RankDeals(const TrainingState& state, const Placement& placement,
            const std::vector<ParamGroup>& groups, Policy policy);

  const Placement& placement() const { return placement_; }
  const std::vector<ParamGroup>& groups() const { return groups_; }
  OwnedGroups owned(const RankCoordinates& rank) const;
  // Whether each rank owns a share; else all that share state own all of it.
  bool is_dealt() const;

 private:
  // Of one pipeline stage and expert parallel rank.
  struct Stage {
    std::vector<HeldEntry> held;       // parameters alone
    std::vector<uint32_t> held_of_id;  // ids are places in the concatenation of all groups
    Ownership ownership;
  };
  Stage deal_stage(uint32_t stage, uint32_t expert_rank) const;

  const TrainingState& state_;
  const Placement& placement_;
  const std::vector<ParamGroup>& groups_;
  Policy policy_;
  std::vector<uint32_t> group_of_;  // [param] counted over all optimizers; frozen: none, ~0
  std::map<std::pair<uint32_t, uint32_t>, Stage> stages_;
};

}  // namespace optim
