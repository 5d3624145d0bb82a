#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include <ckpt/checkpoint.h>
#include <optim/layer_wise_checkpoint.h>

namespace optim {

// What a replay should end in: another checkpoint, or safetensors with KIND.NAME.
class Expectation {
 public:
  // Throws what Checkpoint::open and name_layer_wise throw; Unsupported for other files.
  Expectation(const std::filesystem::path& path, const ckpt::Limits& limits);

  // Of a parameter: "model", "fp32_param", a state's name. Throws Corrupt when it is absent.
  at::Tensor tensor(const std::string& kind, const std::string& name) const;
  // nullopt: none is recorded.
  std::optional<double> step(const std::string& name) const;

  // Throws Corrupt for recorded tensors of these kinds that no key of `known` ("KIND.NAME") names.
  void check_nothing_else(const std::set<std::string>& known) const;

 private:
  std::string key_of(const std::string& kind, const std::string& name) const;
  const ckpt::Catalog& catalog() const;

  std::filesystem::path path_;
  ckpt::Checkpoint checkpoint_;
  std::optional<LayerWiseCheckpoint> view_;  // nullopt: safetensors
};

}  // namespace optim
