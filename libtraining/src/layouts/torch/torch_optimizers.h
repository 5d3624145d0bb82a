#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <training/opened_training.h>
#include <training/training_state.h>

#include "args/value_place.h"
#include "grid/build_state.h"
#include "grid/placement.h"
#include "layouts/parts/rank_items.h"
#include "layouts/parts/tensor_parts.h"
#include "layouts/parts/torch_source.h"
#include "model/tensor_names.h"

// Optimizer state in rank files: {optimizer: {state: {0: {...}}, param_groups: [...]},
// fp32_from_fp16_params: [[...]]}, a list of such where optimizers are chained. Parameters are
// numbered; which ones a rank owns follows from the deal, and every count and shape must agree.
namespace optim {

// Collects the step counts that rank files of a `torch` checkpoint hold for each parameter. All
// parameters of an optimizer have one count, or none has.
class StepCounter {
 public:
  struct Counted {
    uint32_t param;
    TrainingState& state;
  };
  // As torch's AdamW counts, in a 0-dim tensor, and as SOAP does. Throw Unsupported where the count
  // differs from that of the parameters before.
  void add(const OpenedTraining& source, const ckpt::TensorEntry& tensor, const Place& place,
           const Counted& counted);
  void add(int64_t step, const Place& place, const Counted& counted);

  // When all ranks have been read; also notes the counts that groups hold. Throws Corrupt where
  // some parameters of an optimizer have a count.
  void finish(CommonBuilder& common, TrainingState& state) const;

 private:
  std::set<uint32_t> params_;  // with a count of their own
};

class TorchOptimizers {
 public:
  // `state`: its model is known. `parts` get masters and states under their canonical keys.
  struct Into {
    TrainingState& state;
    CommonBuilder& common;
    TensorParts& parts;
  };
  TorchOptimizers(const TorchSource& source, const RankDeals& deals, Into into);

  // The state of one rank: a document's value, and where it lies.
  struct RankState {
    const WorldRank& rank;
    const ckpt::Document& document;
    ckpt::Value value;
    Place place;
  };
  void read(const RankState& state);
  // When all ranks have been read: step counts, and what is not every rank's.
  void finish();

  // The first parameter of which an optimizer has no state, not even an empty one.
  struct Absent {
    Place place;
    uint32_t param;
  };
  const std::optional<Absent>& absent() const { return absent_; }

 private:
  using Groups = std::vector<std::vector<HeldEntry>>;
  void read_optimizer(const RankState& state, uint32_t optimizer, const Groups& owned);
  void read_master(const RankState& state, uint32_t param, const Place& place);
  void read_states(const RankState& state, uint32_t param, const Place& place);
  void read_state(const RankState& state, uint32_t param, const std::string& name,
                  const Place& place);
  void add_tensor(const RankState& state, uint32_t param, const std::string& name,
                  const Place& place);
  void check_shape(const ckpt::TensorEntry& tensor, uint32_t param, const Place& place) const;
  std::string rule_of_owners() const;  // in words
  bool has_master(uint32_t param) const;
  void check_group_counts(const ckpt::Value& group, const ckpt::Value& masters,
                          const std::vector<HeldEntry>& owned, const Place& place) const;
  uint32_t param_of(const HeldEntry& held) const { return into_.state.model[held.entry].param; }

  const TorchSource& source_;
  const RankDeals& deals_;
  Into into_;
  RankItems rank_items_;
  StepCounter steps_;
  RankGroups groups_;
  std::set<uint32_t> read_;  // parameters whose states were read, of any rank
  std::optional<Absent> absent_;
};

// The model's state dicts in the files of rank folders: /model, or /model0, /model1, ... of the
// chunks of an interleaved pipeline.
class TorchModels {
 public:
  TorchModels(const TorchSource& source, TrainingState& state, CommonBuilder& common)
      : source_(source), state_(state), common_(common) {}

  // Fills the model, its parameters (but shapes and weights) and extra states of `state`, whose
  // grid and facts are known; `parts` get the weights, under the parameters' names. The model's
  // order is that of the files, stage after stage. Throws Corrupt where ranks hold different names.
  void read(TensorParts& parts);

 private:
  struct LocalEntry {
    std::string name;  // on the rank
    ckpt::Value value;
    Place place;
  };
  using LocalModel = std::vector<LocalEntry>;  // of one chunk
  struct Folder {
    const WorldRank* rank;
    std::vector<LocalModel> chunks;
  };

  Folder read_folder(const WorldRank& rank) const;
  LocalModel read_chunk(const ckpt::Document& document, const Place& place) const;
  const Folder& folder_of(uint32_t stage, uint32_t expert_rank) const;
  void require_alike() const;
  void find_stacks();
  bool has_copy_of_embedding() const;
  void put_stages_in_order();
  void order_model();
  void add_chunk(const ModelChunk& chunk);
  void add_metadata(const ModelChunk& chunk);
  void add_entry(const LocalEntry& entry, const std::string& name);
  void add_parts(const Folder& folder, TensorParts& parts);
  void add_extra_state(const LocalEntry& entry, const Folder& folder, ModelEntry& known);
  void require_same(const LocalEntry& local, const LocalModel& model) const;
  RankPart part_of(const ModelChunk& chunk, uint32_t expert_rank) const;

  const TorchSource& source_;
  TrainingState& state_;
  CommonBuilder& common_;
  std::vector<ModelChunk> chunks_;
  std::vector<Folder> folders_;
  std::map<std::string, uint32_t, std::less<>> entries_;  // by name in the model
  std::map<std::string, PlacedValue> extra_places_;       // the first of each name
};

}  // namespace optim
