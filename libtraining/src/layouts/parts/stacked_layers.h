#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <training/training_state.h>

#include "model/megatron_keys.h"

// Parts of what torch_dist stacks over layers and experts.
namespace optim {

// "X._extra_state/shard_1.0_2.4" -> X._extra_state, layer 1 of 2 and expert 0 of 4;
// "rng_state/shard_0.1_2.2" -> pipeline and tensor rank.
struct ObjectShard {
  std::string key;
  std::vector<uint32_t> indices, counts;  // of one length
};
std::optional<ObjectShard> parse_object_key(const std::string& text);
std::string object_key(const ObjectShard& shard);

// Throws Corrupt where one of the parts that a key counts is missing.
void check_object_shards(std::span<const ckpt::ObjectEntry> objects, const KeyRules& rules);

// The parts of a stacked tensor, layer by layer and in each expert by expert: the leading axes are
// taken off. Keys stay as they are.
std::vector<ckpt::TensorEntry> unstack(const ckpt::TensorEntry& stacked, StackedAxes axes);

// Which stacks of layers a model has, out of its names in the files of torch or torch_dist. Of the
// decoder args say how many layers it has; of others only the names do.
class LayerStacks {
 public:
  enum class From : uint8_t { StateDicts, Store };
  explicit LayerStacks(From from) : from_(from) {}
  // A name of a state dict, or a key of torch_dist; of one that is stacked over layers their count.
  void add(std::string_view name, uint64_t stacked_layers = 0);
  // Into grid and facts, as `args` had them read. Throws Unsupported for keys of one stack that are
  // stacked and others that are not.
  void settle(const ckpt::Value& args, TrainingState& state) const;

 private:
  struct Seen {
    std::string stacked, unstacked;  // the last key that is
    uint64_t layers = 0;
    bool has_norms = false;  // under their own names
  };
  void settle_language_model(const ckpt::Value& args, TrainingState& state) const;

  From from_;
  std::map<std::string, Seen, std::less<>> seen_;  // by prefix
  bool has_language_output_ = false;
};

// Whether a LLaVA-like model's output layer is tied as its weights are, whatever args say:
// pretrain_vlm.py never ties it; examples/multimodal, which has this argument, does by args.
bool is_tied_by_weights(const ckpt::Value& args, const ModelFacts& facts);

// Tensors of a torch_dist folder that have a key for each segment of their rows (RowSegment).
class SegmentedTensors {
 public:
  // Joins those of which all segments are there; of other modules that have such names, each is a
  // tensor of its own. Throws Corrupt where segments do not fit together, or those of a state are
  // of other sizes than its parameter's.
  SegmentedTensors(const ckpt::Catalog& catalog, const KeyRules& rules);

  // Whether a tensor of the catalog is in a joined one.
  bool has(size_t tensor) const { return !is_joined_.empty() && is_joined_[tensor]; }
  // Under the key of the whole.
  const std::vector<ckpt::TensorEntry>& joined() const { return joined_; }
  // Rows of each segment, by the key of a parameter; null: it has none.
  const std::vector<uint64_t>* sections(const std::string& key) const;

 private:
  void join(const std::string& key, size_t axis, const std::vector<const ckpt::TensorEntry*>& of);

  std::vector<bool> is_joined_;  // [tensor of the catalog]; empty: none is
  std::vector<ckpt::TensorEntry> joined_;
  std::map<std::string, std::vector<uint64_t>> sections_;
};

}  // namespace optim
