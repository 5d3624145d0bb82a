#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <training/layer_wise_checkpoint.h>

#include "cuts.h"
#include "recording.h"

namespace optim {

// What a replay should end in: another checkpoint, or safetensors with KIND.NAME.
class Expectation {
 public:
  // Throws what Checkpoint::open and name_layer_wise throw; Unsupported for other files.
  // `cuts`: of the parameters that are compared; must outlive it.
  Expectation(const std::filesystem::path& path, const ckpt::Limits& limits, const Cuts& cuts);

  const Cuts& cuts() const { return cuts_; }

  // Of a parameter: "model", "fp32_param", a state's name. Throws Corrupt when it is absent or has
  // another shape or type than `ours`.
  at::Tensor tensor(const std::string& kind, const std::string& name, const at::Tensor& ours) const;

  // Whether counts of updates can be compared: a safetensors file may leave out all of them.
  bool has_steps() const;
  double step(const std::string& name) const;  // throws Corrupt when it is absent

  // Throws Corrupt for tensors that no key of `known` ("KIND.NAME") names; gradients may be there.
  void check_nothing_else(const std::set<std::string>& known) const;

 private:
  std::vector<std::pair<std::string, std::string>> contents() const;
  std::string key_of(const std::string& kind, const std::string& name) const;

  const Cuts& cuts_;
  Recording recording_;
  std::optional<TrainingState> view_;  // nullopt: safetensors
  bool has_masters_ = false;           // master.NAME instead of fp32_param.NAME
  ckpt::Catalog tensors_;              // of the view
};

}  // namespace optim
