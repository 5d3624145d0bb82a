#include "step/replay/gradients.h"

#include <ckpt/error.h>
#include <optim/checkpoint_bridge.h>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "step/loops/grad_stats_kernels.h"
#include "step/replay/json_fields.h"
#include "step/replay/json_file.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUsualName = "init_and_grads.safetensors";
constexpr std::string_view kInit = "init.";

fs::path gradients_file(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  if (fs::exists(path / kUsualName)) return path / kUsualName;
  std::set<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") found.insert(entry.path());
  }
  if (found.size() != 1) {
    throw ckpt::Error(
        ckpt::ErrorCode::NotFound, {.file = path.string()},
        found.empty() ? "contains no *.safetensors file"
                      : "contains several *.safetensors files and no " + std::string(kUsualName),
        "give the path of the file with the gradients");
  }
  return *found.begin();
}

// The parameter's name in a key init.NAME or grad{k}.NAME; nullopt for other keys.
std::optional<std::string_view> param_of(std::string_view key) {
  if (key.starts_with(kInit)) return key.substr(kInit.size());
  if (const auto step_key = parse_step_key("grad", key)) return step_key->rest;
  return std::nullopt;
}

}  // namespace

Gradients::Gradients(const fs::path& path, int64_t first)
    : recording_(gradients_file(path)), first_(first) {
  check_keys();
  const int64_t recorded = recording_.count_steps();
  if (recorded == 0) recording_.refuse("", "contains no gradients (grad0.NAME, ...)");
  if (first >= recorded) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "--first " + std::to_string(first) + ": only " + std::to_string(recorded) +
                          (recorded == 1 ? " step is" : " steps are") + " recorded, from 0 on");
  }
  step_count_ = recorded - first;
}

// Megatron-Core up to 0.12 registers no bias of a router, which recordings of later ones have.
static bool may_be_unregistered(std::string_view name) {
  return name.ends_with(".mlp.router.bias");
}

void Gradients::check_keys() const {
  for (const ckpt::TensorEntry& tensor : recording_.catalog().tensors) {
    if (param_of(tensor.key) || is_state_key(tensor.key)) continue;
    recording_.refuse(tensor.key,
                      "expected grad0.NAME, grad1.NAME, ... or init.NAME, found another name");
  }
}

const ckpt::TensorEntry& Gradients::grad_entry(int64_t step, const ParamInfo& param) const {
  return recording_.find("grad" + std::to_string(first_ + step) + "." + param.name,
                         form_of(param, {ckpt::DType::Float32, ckpt::DType::BFloat16}));
}

const ckpt::TensorEntry& Gradients::initial_entry(const ParamInfo& param) const {
  return recording_.find(std::string(kInit) + param.name, form_of(param, {param.dtype}));
}

void Gradients::check(std::span<const TrainedParam> params, int64_t steps, bool with_init) const {
  std::set<std::string_view> names;
  for (const TrainedParam& param : params) {
    names.insert(param.info.name);
    if (!param.info.requires_grad) continue;
    for (int64_t step = 0; step < steps; ++step) grad_entry(step, param.info);
    if (with_init) initial_entry(param.info);
  }
  for (const ckpt::TensorEntry& tensor : recording_.catalog().tensors) {
    const auto name = param_of(tensor.key);
    if (name && !names.contains(*name) && !may_be_unregistered(*name)) {
      recording_.refuse(tensor.key, "does not belong to any parameter of the checkpoint");
    }
  }
}

at::Tensor Gradients::grad(int64_t step, const ParamInfo& param) const {
  const ckpt::TensorEntry& entry = grad_entry(step, param);
  at::Tensor grad = load_tensor(recording_.checkpoint(), entry);
  const double squares = sum_of_squares(grad);
  if (!std::isfinite(squares)) {
    recording_.refuse(entry.key, "expected finite numbers, found " +
                                     std::string(std::isnan(squares) ? "NaN" : "infinity"));
  }
  return grad;
}

at::Tensor Gradients::initial(const ParamInfo& param) const {
  return load_tensor(recording_.checkpoint(), initial_entry(param));
}

std::vector<double> Gradients::recorded_norms(int64_t steps) const {
  const fs::path file = recording_.path().parent_path() / "run.json";
  const nlohmann::json run = read_json_file(file);
  std::vector<double> norms;
  for (int64_t step = 0; step < steps; ++step) {
    const std::string pointer = "/steps/" + std::to_string(first_ + step) + "/grad_norm";
    const nlohmann::json::json_pointer at(pointer);
    const nlohmann::json norm = run.contains(at) ? run.at(at) : nlohmann::json();
    const bool is_norm = norm.is_number() && norm.get<double>() >= 0;
    if (!is_norm) {
      throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file.string(), .key = pointer},
                        "expected a number of at least 0, found " +
                            (run.contains(at) ? found_text(norm) : "nothing"));
    }
    norms.push_back(norm.get<double>());
  }
  return norms;
}

}  // namespace optim
