#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <optim/layer_wise_checkpoint.h>

namespace optim {

// Recorded gradients: safetensors with grad{k}.NAME and init.NAME.
class Gradients {
 public:
  // A file, or a folder: see ReplayOptions::gradients. Throws NotFound and what Checkpoint::open
  // throws.
  explicit Gradients(const std::filesystem::path& path);

  // Steps 0, 1, ... of which some parameter has a gradient.
  int64_t step_count() const { return step_count_; }

  // Throws Corrupt, with the key, unless each of the steps has a gradient of each parameter's shape
  // and none of anything else, and with_init the same holds of init.NAME in the parameter's type.
  void check(std::span<const LayerWiseParam> params, int64_t steps, bool with_init) const;

  at::Tensor grad(int64_t step, const ParamInfo& param) const;
  at::Tensor initial(const ParamInfo& param) const;

  // steps[k].grad_norm of the run.json in the folder of the gradients. Throws NotFound, Corrupt.
  std::vector<double> recorded_norms(int64_t steps) const;

 private:
  const ckpt::TensorEntry& entry(const std::string& key, const ParamInfo& param) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const;
  void check_grad(const std::string& key, const ParamInfo& param) const;

  std::filesystem::path file_;
  ckpt::Checkpoint tensors_;
  int64_t step_count_ = 0;
};

}  // namespace optim
