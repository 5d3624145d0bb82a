#include "expectation.h"

#include <optim/checkpoint_bridge.h>
#include <training/layer_wise_checkpoint.h>
#include <algorithm>

#include "restored_optimizer.h"

namespace optim {
namespace {

// Recorded states call it one or the other.
constexpr std::string_view kModel = "model.";
constexpr std::string_view kMaster = "fp32_param", kMasterOfSets = "master";

}  // namespace

Expectation::Expectation(const std::filesystem::path& path, const ckpt::Limits& limits,
                         const Cuts& cuts)
    : cuts_(cuts), recording_(path, limits) {
  if (recording_.catalog().format != ckpt::Format::Safetensors) {
    view_ = name_layer_wise(recording_.checkpoint());
    tensors_ = catalog_of(*view_);
  }
  has_masters_ = std::ranges::any_of(recording_.catalog().tensors, [](const auto& tensor) {
    return tensor.key.starts_with("master.");
  });
}

std::string Expectation::key_of(const std::string& kind, const std::string& name) const {
  if (view_) return canonical_key(kind, name);
  return (kind == kMaster && has_masters_ ? std::string(kMasterOfSets) : kind) + "." + name;
}

at::Tensor Expectation::tensor(const std::string& kind, const std::string& name,
                               const at::Tensor& ours) const {
  const ckpt::Catalog& catalog = view_ ? tensors_ : recording_.catalog();
  const std::vector<int64_t> whole = cuts_.whole_shape(name, ours.sizes());
  const ckpt::Extents shape(whole.begin(), whole.end());
  const ckpt::TensorEntry& entry = recording_.find(catalog, key_of(kind, cuts_.whole_name(name)),
                                                   {shape, {dtype_of(ours.scalar_type())}});
  return cuts_.piece(load_tensor(recording_.checkpoint(), entry), name);
}

bool Expectation::has_steps() const {
  if (view_) return !view_->chain.empty();
  return std::ranges::any_of(recording_.catalog().tensors,
                             [](const auto& tensor) { return tensor.key.starts_with("step."); });
}

double Expectation::step(const std::string& piece) const {
  const std::string& name = cuts_.whole_name(piece);
  if (!view_) {
    const ckpt::TensorEntry& entry = recording_.find(
        "step." + name, {{}, {ckpt::DType::Float32, ckpt::DType::Float64, ckpt::DType::Int64}});
    return load_tensor(recording_.checkpoint(), entry).item<double>();
  }
  const auto found = std::ranges::find(view_->params, name,
                                       [](const TrainedParam& param) { return param.info.name; });
  if (found == view_->params.end()) recording_.refuse(name, "is missing");
  return static_cast<double>(saved_step(*view_, *found));
}

// "KIND.NAME" and the key of everything that may be compared.
std::vector<std::pair<std::string, std::string>> Expectation::contents() const {
  std::vector<std::pair<std::string, std::string>> found;
  const auto add = [&](const std::string& kind, const std::string& name) {
    found.emplace_back(kind + "." + name, key_of(kind, name));
  };
  if (view_) {
    for (const TrainedParam& param : view_->params) {
      add("model", param.info.name);
      for (const StateTensor& state : param.states) add(state.name, param.info.name);
    }
    return found;
  }
  for (const ckpt::TensorEntry& tensor : recording_.catalog().tensors) {
    const bool is_gradient =
        tensor.key.starts_with("init.") || parse_step_key("grad", tensor.key).has_value();
    const bool is_buffer = tensor.key.starts_with(kModel) &&
                           is_model_buffer(std::string_view(tensor.key).substr(kModel.size()));
    if (is_gradient || is_buffer) continue;
    const bool is_master = tensor.key.starts_with("master.");
    found.emplace_back(
        is_master ? std::string(kMaster) + tensor.key.substr(kMasterOfSets.size()) : tensor.key,
        tensor.key);
  }
  return found;
}

void Expectation::check_nothing_else(const std::set<std::string>& known) const {
  for (const auto& [item, key] : contents()) {
    if (!known.contains(item)) recording_.refuse(key, "does not match anything that was replayed");
  }
}

}  // namespace optim
