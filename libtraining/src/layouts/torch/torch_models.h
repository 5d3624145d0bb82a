#pragma once

#include <map>
#include <string>
#include <vector>

#include <training/training_state.h>

#include "grid/build_state.h"
#include "layouts/parts/rank_items.h"
#include "layouts/parts/tensor_parts.h"
#include "layouts/parts/torch_source.h"
#include "model/stage_names.h"

// The model's state dicts in the files of rank folders: /model, or /model0, /model1, ... of the
// chunks of an interleaved pipeline.
namespace optim {

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
