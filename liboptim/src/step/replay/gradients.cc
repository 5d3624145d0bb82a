#include "step/replay/gradients.h"

#include <ckpt/error.h>
#include <optim/checkpoint_bridge.h>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "step/replay/json_file.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUsualName = "init_and_grads.safetensors";

fs::path gradients_file(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  if (fs::exists(path / kUsualName)) return path / kUsualName;
  std::set<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") found.insert(entry.path());
  }
  if (found.size() != 1) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = path.string()},
                      found.empty()
                          ? "holds no *.safetensors"
                          : "holds several *.safetensors and no " + std::string(kUsualName),
                      "name the file with the gradients");
  }
  return *found.begin();
}

struct StepKey {
  int64_t step;
  std::string_view name;
};

// "grad12.NAME" -> {12, NAME}; nullopt for other keys.
std::optional<StepKey> parse_step_key(std::string_view key) {
  constexpr std::string_view kPrefix = "grad";
  constexpr size_t kDigitsMax = 15;  // more is no step number
  if (!key.starts_with(kPrefix)) return std::nullopt;
  const size_t dot = key.find('.');
  if (dot == key.npos || dot == kPrefix.size()) return std::nullopt;
  const std::string_view digits = key.substr(kPrefix.size(), dot - kPrefix.size());
  if (digits.size() > kDigitsMax) return std::nullopt;
  int64_t step = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return std::nullopt;
    step = step * 10 + (digit - '0');
  }
  return StepKey{step, key.substr(dot + 1)};
}

std::string grad_key(int64_t step, const ParamInfo& param) {
  return "grad" + std::to_string(step) + "." + param.name;
}

int64_t count_steps(const ckpt::Catalog& catalog) {
  std::set<int64_t> seen;
  for (const ckpt::TensorEntry& tensor : catalog.tensors) {
    if (const auto key = parse_step_key(tensor.key)) seen.insert(key->step);
  }
  int64_t count = 0;
  while (seen.contains(count)) ++count;
  return count;
}

}  // namespace

Gradients::Gradients(const fs::path& path)
    : file_(gradients_file(path)),
      tensors_(ckpt::Checkpoint::open(file_)),
      step_count_(count_steps(tensors_.catalog())) {
  if (step_count_ == 0) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file_.string()},
                      "holds no gradients (grad0.NAME, ...)");
  }
}

void Gradients::refuse(const std::string& key, const std::string& problem) const {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file_.string(), .key = key}, problem);
}

const ckpt::TensorEntry& Gradients::entry(const std::string& key, const ParamInfo& param) const {
  const ckpt::TensorEntry* const found = tensors_.catalog().find_tensor(key);
  if (found == nullptr) refuse(key, "is missing");
  if (found->shape != ckpt::Extents(param.shape.begin(), param.shape.end())) {
    refuse(key, "has another shape than the parameter");
  }
  return *found;
}

void Gradients::check_grad(const std::string& key, const ParamInfo& param) const {
  const ckpt::DType dtype = entry(key, param).dtype;
  if (dtype != ckpt::DType::Float32 && dtype != ckpt::DType::BFloat16) {
    refuse(key, "is neither float32 nor bfloat16");
  }
}

void Gradients::check(std::span<const LayerWiseParam> params, int64_t steps, bool with_init) const {
  std::set<std::string_view> names;
  for (const LayerWiseParam& param : params) {
    names.insert(param.info.name);
    for (int64_t step = 0; step < steps; ++step) check_grad(grad_key(step, param.info), param.info);
    if (with_init && entry("init." + param.info.name, param.info).dtype != param.info.dtype) {
      refuse("init." + param.info.name, "has another type than the parameter");
    }
  }
  for (const ckpt::TensorEntry& tensor : tensors_.catalog().tensors) {
    const auto key = parse_step_key(tensor.key);
    if (key && key->step < steps && !names.contains(key->name)) {
      refuse(tensor.key, "is the gradient of no parameter of the checkpoint");
    }
  }
}

at::Tensor Gradients::grad(int64_t step, const ParamInfo& param) const {
  return load_tensor(tensors_, entry(grad_key(step, param), param));
}

at::Tensor Gradients::initial(const ParamInfo& param) const {
  return load_tensor(tensors_, entry("init." + param.name, param));
}

std::vector<double> Gradients::recorded_norms(int64_t steps) const {
  const fs::path file = file_.parent_path() / "run.json";
  const nlohmann::json run = read_json_file(file);
  std::vector<double> norms;
  for (int64_t step = 0; step < steps; ++step) {
    const std::string pointer = "/steps/" + std::to_string(step) + "/grad_norm";
    const nlohmann::json::json_pointer at(pointer);
    const bool is_norm = run.contains(at) && run.at(at).is_number() &&
                         run.at(at).get<double>() >= 0 && std::isfinite(run.at(at).get<double>());
    if (!is_norm) {
      throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file.string(), .key = pointer},
                        "is no gradient norm");
    }
    norms.push_back(run.at(at).get<double>());
  }
  return norms;
}

}  // namespace optim
