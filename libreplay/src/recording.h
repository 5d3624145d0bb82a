#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/limits.h>
#include <optim/param_key.h>
#include <training/opened_training.h>

namespace optim {

// What the safetensors files of recordings have in common: gradients, expected states, traces.

// A key "grad12.NAME": which step, and of what.
struct StepKey {
  int64_t step = 0;
  std::string_view rest;
};
// nullopt unless `key` is `prefix`, a number without sign and leading zeros, a dot, and the rest.
std::optional<StepKey> parse_step_key(std::string_view prefix, std::string_view key);

// A key "KIND.NAME" of an expected state: "model.", "fp32_param.", "exp_avg.", "step.", ...
bool is_state_key(std::string_view key);

// What a tensor must be: of the shape, and of one of the types.
struct TensorForm {
  ckpt::Extents shape;
  std::vector<ckpt::DType> types;
};
TensorForm form_of(const ParamInfo& param, std::initializer_list<ckpt::DType> types);

// One opened, and what is asked of its tensors before they are read.
class Recording {
 public:
  // Throws what Checkpoint::open throws.
  explicit Recording(std::filesystem::path path, const ckpt::Limits& limits = {});
  Recording(std::filesystem::path path, OpenedTraining opened)
      : path_(std::move(path)), checkpoint_(std::move(opened)) {}

  const std::filesystem::path& path() const { return path_; }
  const OpenedTraining& checkpoint() const { return checkpoint_; }
  const ckpt::Catalog& catalog() const { return checkpoint_.catalog(); }

  // Of how many steps there are keys grad{k}.NAME. Throws Corrupt unless they are 0, 1, 2, ...
  int64_t count_steps() const { return count_steps(catalog()); }
  int64_t count_steps(const ckpt::Catalog& catalog) const;  // in another catalog

  // Throws Corrupt where the tensor is absent, of another shape, or of none of the types.
  const ckpt::TensorEntry& find(const std::string& key, const TensorForm& form) const;
  // The same in another catalog of what was opened.
  const ckpt::TensorEntry& find(const ckpt::Catalog& catalog, const std::string& key,
                                const TensorForm& form) const;

  // Throws Corrupt, with the file.
  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const;

 private:
  std::filesystem::path path_;
  OpenedTraining checkpoint_;
};

}  // namespace optim
