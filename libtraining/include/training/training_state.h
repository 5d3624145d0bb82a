#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/target.h>
#include <optim/ownership.h>
#include <optim/param_key.h>
#include <training/chained_optimizer_state.h>
#include <training/export.h>
#include <training/model_facts.h>

namespace optim {

// What a training run would go on with, whatever files it lies in: one parameter is named once,
// with its master and its states, in every layout and at every parallel size.
//
//   NAME                              the model's tensor, as its state dict names it
//   optimizer.state.fp32_param.NAME   the fp32 master
//   optimizer.state.STATE.NAME        momentum_buffer, exp_avg, exp_avg_sq, L, ...
//
// A value: it refers to the files of the Checkpoint that it was made of, and holds none open.

class ModelRules;  // of --model-rules

// A tensor under such a key: dtype, shape of the whole, and its chunks in the source's files.
using TensorRef = std::shared_ptr<const ckpt::TensorEntry>;

struct StateTensor {
  std::string name;  // "exp_avg", "L": as the optimizer calls it
  TensorRef value;   // of a type and a shape of its own
};

// One parameter of the model, and what the optimizer keeps of it.
struct TrainedParam {
  ParamInfo info;  // dtype of the model's tensor; attributes as Megatron sets them
  TensorRef weight;
  TensorRef master;                 // null: none is stored, as of a frozen parameter
  std::vector<StateTensor> states;  // in the file's order
  TensorSharing sharing;            // by tensor parallel ranks, of experts by expert ones
  uint32_t optimizer = 0;           // place in the chain
  uint32_t group = 0;               // within that optimizer
};

// What the model's state dict holds under a name, in its order.
struct ModelEntry {
  // OtherName: of a parameter that the model registers twice (T5's output_layer.bias).
  enum class What : uint8_t { Param, ExtraState, OtherName } what = What::Param;
  std::string name;
  uint32_t param = 0;              // Param, OtherName: index into params
  std::optional<uint32_t> object;  // ExtraState that is not None: index into extra_states
};

struct TrainingState {
  std::vector<ModelEntry> model;
  std::string unknown_order;  // the first entry of which it is not known where it is registered
  std::vector<TrainedParam> params;  // in model order
  std::vector<ChainedOptimizerState> chain;

  // {args, checkpoint_version, iteration, opt_param_scheduler, ...} in the order of the file, which
  // is rank 0's; no model, no optimizer, no content_metadata.
  ckpt::Document common;
  // `_metadata` of the OrderedDict of each model chunk, in `common`; empty: of none.
  std::vector<std::optional<ckpt::NodeId>> model_metadata;
  std::vector<std::shared_ptr<const ckpt::Document>> extra_states;
  // Of a module that holds several experts, by name: torch_dist cuts what it holds, by expert.
  std::map<std::string, std::vector<std::shared_ptr<const ckpt::Document>>> expert_states;
  // Attributes of wrapped tensors, as their masters have them, by key; in `common`. Only of torch
  // sources.
  std::map<std::string, ckpt::NodeId> attributes;
  std::vector<RankItem> rank_items;
  std::vector<RankRng> rng_states;
  // Objects of torch_dist that belong to the ranks of one run, by key: rerun_state_machine_state.
  std::vector<std::pair<std::string, std::shared_ptr<const ckpt::Document>>> rank_objects;

  // Of args: one rank file has an enum's member by value, another by name (ckpt::OneMember::Maybe).
  // The first file's is carried.
  std::set<std::string> maybe_equal_args;

  std::string config;  // of Megatron Bridge, where it has the args and the common state has none
  RunGrid grid;        // from args
  ModelFacts facts;    // from args
  std::shared_ptr<const ModelRules> rules;    // null: the built-in ones
  std::vector<ckpt::NotCarried> not_carried;  // by any target

  TRAINING_EXPORT ckpt::Value args() const;  // the attributes of args, a Dict
};

// Every tensor, under its key: of each parameter, in model order, the weight, the master and the
// states.
TRAINING_EXPORT std::vector<TensorRef> tensors_of(const TrainingState& state);

// The same as a catalog, to find them in. It names no files.
TRAINING_EXPORT ckpt::Catalog catalog_of(const TrainingState& state);

}  // namespace optim
