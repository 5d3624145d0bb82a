#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/checkpoint.h>
#include <ckpt/error.h>
#include <ckpt/plain_target.h>
#include <training/layer_wise_checkpoint.h>

#include "model/megatron_keys.h"

// What both readers of LayerWise checkpoints share: args, parameters and groups, the common state.
namespace optim {

inline constexpr std::string_view kStatePrefix = "optimizer.state.";
inline constexpr std::string_view kMasterState = "fp32_param";
// Of a DistributedOptimizer, which owns what Muon does not since core 0.19.
inline constexpr std::string_view kDistributedMaster = "param";

std::string state_key(std::string_view state, std::string_view name);
std::string rank_item_name(uint32_t optimizer, bool is_inner, std::string_view key);

// What a state tensor may hold: moments may be kept in fewer bits than masters.
bool is_state_dtype(ckpt::DType dtype);
// What is stored as a DistributedOptimizer's masters: these, or 16-bit remainders of them.
bool is_master_dtype(ckpt::DType dtype);

// Of a state of this name: its parameter's shape, or for SOAP's L, R, Q_L and Q_R a square one.
// nullopt where a name alone does not tell (moment2_buffer of adaptive Muon).
std::optional<ckpt::Extents> shape_of_state(std::string_view state, const ckpt::Extents& of_param);

KeyRules key_rules(const TrainingState& state);

// A tensor of the source under its key in a training state.
TensorRef with_key(ckpt::TensorEntry tensor, std::string key);

// A model's tensor, under its name, as a parameter with the attributes that Megatron gives it.
TrainedParam make_param(TensorRef weight);

// Whether args are of core 0.19 or later, by an argument of that time: nothing else names a
// release.
bool is_since_core_019(const ckpt::Value& args);

// Whether experts have groups, and sharded state optimizers, of their own: with more than one
// expert parallel rank; since Megatron's change 5916 (July 2026, core 0.19) also where their tensor
// parallelism is another one, as their data-parallel ranks are others then.
bool are_experts_apart(const ckpt::Value& args, const ParallelSizes& sizes);

// The groups that Megatron makes of these parameters.
std::vector<ParamGroup> groups_of(const ckpt::Value& args, const ParallelSizes& sizes,
                                  const std::vector<TrainedParam>& params);
// Of a state whose parameters know theirs: the same, each with the first of its parameters alone.
std::vector<ParamGroup> groups_in_brief(const TrainingState& state);
// The same as groups_of(); sets optimizer and group of each.
std::vector<ParamGroup> group_params(const ckpt::Value& args, const ParallelSizes& sizes,
                                     std::vector<TrainedParam>& params);

// Of a parameter that Adam updates: the first of exp_avg and exp_avg_sq that it lacks.
std::optional<std::string_view> missing_moment(const TrainedParam& param);

// Collects `common`: values are carried from several documents into one.
class CommonBuilder {
 public:
  CommonBuilder() : root_(builder_.tree().dict()) {}
  ckpt::ArchiveBuilder& archive() { return builder_; }
  ckpt::ValueTree& tree() { return builder_.tree(); }
  void put(std::string_view key, ckpt::NodeId value) { tree().put(root_, key, value); }
  void erase(std::string_view key) { tree().erase(root_, key); }
  ckpt::NodeId carry(const ckpt::Value& value, const ckpt::Document& document) {
    return builder_.carry(value, document);
  }
  // Keeps a document until finish(): storages are told apart by document.
  const ckpt::Document& keep(std::shared_ptr<const ckpt::Document> document) {
    kept_.push_back(std::move(document));
    return *kept_.back();
  }
  ckpt::NodeId carry(const ckpt::Value& value, std::shared_ptr<const ckpt::Document> document) {
    return builder_.carry(value, keep(std::move(document)));
  }
  ckpt::Document finish();

 private:
  ckpt::ArchiveBuilder builder_;
  ckpt::NodeId root_;
  std::vector<std::shared_ptr<const ckpt::Document>> kept_;
};

// The last step of both readers: the common state, and what the source says of itself.
void finish_state(FiledState& state, CommonBuilder& common, const ckpt::Checkpoint& source);

}  // namespace optim
