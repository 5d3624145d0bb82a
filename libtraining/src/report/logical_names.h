#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/key_pattern.h>
#include <training/contents.h>
#include <training/opened_training.h>

// The tensors of a checkpoint as the training run has them, by name.
namespace optim {

class LogicalNames {
 public:
  // Where the training state cannot be read, with the names that the stored keys tell.
  explicit LogicalNames(const OpenedTraining& checkpoint);

  // In the order of the model; without what no file names.
  const std::vector<LogicalTensor>& tensors() const { return contents_.tensors; }
  const std::vector<std::string>& keys() const { return keys_; }  // of tensors()
  // Why it cannot, where it is a training state.
  const std::optional<ckpt::Error>& problem() const { return problem_; }
  bool is_state() const { return is_state_; }

 private:
  Contents contents_;
  std::vector<std::string> keys_;
  std::optional<ckpt::Error> problem_;
  bool is_state_ = false;
};

}  // namespace optim
