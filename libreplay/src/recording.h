#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/limits.h>
#include <optim/param_key.h>
#include <training/filed_state.h>
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

std::string grad_key(int64_t step, const std::string& name);  // "grad12.NAME"
// "step12.WHAT.NAME": what a trace has of a parameter behind a step.
std::string step_key(int64_t step, std::string_view what, const std::string& name);

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

// What gradients are of.
struct GradientsOf {
  const FiledState& state;
  int64_t iteration = 0;  // of the checkpoint; the first step leads to the next one
};

// Recorded gradients: tensors grad{k}.NAME and init.NAME, in safetensors, a torch.save file or a
// DCP folder, or what Megatron dumps (layouts/gradient_dump.h). The state that is expected in the
// end may be in the same file.
class Gradients {
 public:
  // A file, or a folder: see ReplayOptions::gradients. Throws NotFound, what Checkpoint::open
  // throws, and Corrupt, with the key, for keys that are not understood and for steps that are not
  // 0, 1, 2, ...
  // `first`: the steps begin with grad{first}; those before are left out.
  Gradients(const std::filesystem::path& path, const GradientsOf& of, int64_t first = 0);

  int64_t step_count() const { return step_count_; }  // from `first` on

  // As Megatron dumps them: times the loss scale, where there is one.
  bool are_dumped() const { return is_dump_; }

  // Throws Corrupt, with the key, unless each of the steps has a gradient of each parameter's shape
  // and no step one of anything else, and with_init the same holds of init.NAME in the parameter's
  // type.
  void check(std::span<const TrainedParam> params, int64_t steps, bool with_init) const;

  at::Tensor grad(int64_t step, const ParamInfo& param) const;
  // The same. Throws Corrupt, with the key, where it holds NaN or infinity: no optimizer steps with
  // that.
  at::Tensor finite_grad(int64_t step, const ParamInfo& param) const;
  at::Tensor initial(const ParamInfo& param) const;

  // steps[k].grad_norm of the run.json in the folder of the gradients. Throws NotFound, Corrupt.
  std::vector<double> recorded_norms(int64_t steps) const;
  bool has_run_record() const { return std::filesystem::exists(run_record()); }

 private:
  // One opened, and its tensors as grad{k}.NAME.
  struct Source {
    Recording recording;
    ckpt::Catalog catalog;
  };
  void read_recording(const std::filesystem::path& file);
  void read_dump(const std::filesystem::path& path, const GradientsOf& of);
  std::filesystem::path run_record() const;
  const Source& source_of(int64_t step) const;
  const ckpt::TensorEntry& grad_entry(int64_t step, const ParamInfo& param) const;
  const ckpt::TensorEntry& initial_entry(const ParamInfo& param) const;

  std::vector<Source> sources_;  // of a dump one for each step, else one
  bool is_dump_ = false;
  int64_t first_ = 0, step_count_ = 0;
};

}  // namespace optim
