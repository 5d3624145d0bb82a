#include "step/replay/expectation.h"

#include <ckpt/error.h>
#include <optim/checkpoint_bridge.h>
#include <array>
#include <string_view>

#include "step/replay/restored_optimizer.h"

namespace optim {
namespace {

constexpr std::array<std::string_view, 5> kKinds = {"model.", "fp32_param.", "exp_avg.",
                                                    "exp_avg_sq.", "momentum_buffer."};

}  // namespace

Expectation::Expectation(const std::filesystem::path& path, const ckpt::Limits& limits)
    : path_(path), checkpoint_(ckpt::Checkpoint::open(path, {{}, limits})) {
  if (checkpoint_.catalog().format != ckpt::Format::Safetensors) {
    view_ = name_layer_wise(checkpoint_);
  }
}

const ckpt::Catalog& Expectation::catalog() const {
  return view_ ? view_->tensors : checkpoint_.catalog();
}

std::string Expectation::key_of(const std::string& kind, const std::string& name) const {
  return view_ ? canonical_key(kind, name) : kind + "." + name;
}

at::Tensor Expectation::tensor(const std::string& kind, const std::string& name) const {
  const std::string key = key_of(kind, name);
  const ckpt::TensorEntry* const entry = catalog().find_tensor(key);
  if (entry == nullptr) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = path_.string(), .key = key},
                      "the expected state lacks this tensor");
  }
  return load_tensor(checkpoint_, *entry);
}

std::optional<double> Expectation::step(const std::string& name) const {
  if (!view_) {
    const auto recorded = load_tensor(checkpoint_, "step." + name);
    if (!recorded || recorded->numel() != 1) return std::nullopt;
    return recorded->item<double>();
  }
  for (const LayerWiseParam& param : view_->params) {
    if (param.info.name == name) return static_cast<double>(saved_step(*view_, param));
  }
  return std::nullopt;
}

void Expectation::check_nothing_else(const std::set<std::string>& known) const {
  if (view_)
    return;  // another checkpoint's state is as complete as ours: name_layer_wise() saw to it
  for (const ckpt::TensorEntry& tensor : checkpoint_.catalog().tensors) {
    const bool is_state = std::any_of(kKinds.begin(), kKinds.end(), [&](std::string_view kind) {
      return tensor.key.starts_with(kind);
    });
    if (is_state && !known.contains(tensor.key)) {
      throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = path_.string(), .key = tensor.key},
                        "nothing that was replayed has this name");
    }
  }
}

}  // namespace optim
