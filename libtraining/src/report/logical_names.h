#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/key_pattern.h>
#include <ckpt/value.h>
#include <training/contents.h>
#include <training/opened_training.h>
#include <training/training_state.h>

// Names of tensors: as the training run has them, by module, and in the order of people.
namespace optim {

// The tensors of a checkpoint as the training run has them.
class LogicalNames {
 public:
  // Where the training state cannot be read, with the names that the stored keys tell.
  explicit LogicalNames(const OpenedTraining& checkpoint);

  // In the order of the model; without what no file names.
  const std::vector<LogicalTensor>& tensors() const { return tensors_; }
  const std::vector<std::string>& keys() const { return keys_; }  // of tensors()
  // Why it cannot, where it is a training state.
  const std::optional<ckpt::Error>& problem() const { return problem_; }

 private:
  std::vector<LogicalTensor> tensors_;
  std::vector<std::string> keys_;
  std::optional<ckpt::Error> problem_;
};

// Those of a parameter: the weight, the master, states.
std::vector<LogicalTensor> tensors_of_param(const TrainedParam& param);
// A tensor under the name that its key tells, without the container of a weight.
LogicalTensor stored_tensor(const ckpt::TensorEntry& tensor, bool is_megatron);
// An optimizer names parameters as its model does, whose name comes before them in the keys of the
// weights: optim.state.fc.weight.exp_avg is of model.fc.weight. Changes the names of states.
void match_state_to_weights(std::span<LogicalTensor* const> tensors);

// The module of a model that a key belongs to, with dots: up to the first number, or without the
// parameter's own name: "decoder.layers.0", "embedding.word_embeddings". State of an optimizer
// belongs to its parameter's module, or to "optimizer" where keys number parameters; "model" and
// "state_dict" in front are left out.
std::string module_of_key(std::string_view key);

// Whether `a` comes before `b` where numbers in them count as numbers: layers.2 before layers.10.
bool natural_less(std::string_view a, std::string_view b);

// Pointers to the values near `root`, the nearest first: for suggestions.
std::vector<std::string> pointers_near(const ckpt::Value& root);

struct NamedValue {
  std::string pointer;
  ckpt::Value value;
};

// The values below `root` that a typed key names: `Exact`, the one at this pointer; `Spelling`, all
// that it names with other separators: "args.lr" for "/args/@lr".
std::vector<NamedValue> values_named(const ckpt::Value& root, std::string_view typed,
                                     ckpt::KeyMatch match);

}  // namespace optim
