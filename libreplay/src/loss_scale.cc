#include "loss_scale.h"

#include <ATen/ops/mul.h>

#include <ckpt/error.h>
#include <optim/checkpoint_args.h>
#include <optim/checkpoint_bridge.h>
#include <memory>
#include <string>

#include "group_settings.h"

namespace optim {
namespace {

constexpr const char* kGradScaler = "grad_scaler";

[[noreturn]] void refuse_scaler(const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = {}, .key = kGradScaler}, problem);
}

at::Tensor scale_tensor(const ReplaySource& source, const ckpt::Value& value) {
  const auto view = ckpt::as_tensor(value);
  const ckpt::StorageRecord* const storage =
      view ? source.state.common.find_storage(view->storage_key) : nullptr;
  const bool is_number = storage != nullptr && ckpt::element_count(view->shape) == 1 &&
                         storage->region.bytes.count_bytes == view->storage_count_bytes;
  if (!is_number) refuse_scaler("expected a scale of one element, found another value");
  ckpt::TensorEntry entry;
  entry.key = "grad_scaler/scale";
  entry.dtype = view->dtype;
  entry.shape = view->shape;
  entry.chunks.push_back(
      {ckpt::whole(view->shape), storage->region, 0,
       std::make_shared<ckpt::StridedView>(ckpt::StridedView{view->offset, view->strides})});
  return load_tensor(source.checkpoint, entry);
}

// {scale: float32[1], growth_tracker, hysteresis_tracker} of the first optimizer that has it: all
// of a chain see the same overflows.
StateDict saved_scaler(const ReplaySource& source) {
  const ckpt::Document& common = source.state.common;
  for (const ChainedOptimizerState& optimizer : source.state.chain) {
    for (const auto& [key, node] : optimizer.others) {
      if (key != kGradScaler) continue;
      const ckpt::Value saved = common.tree.value(node);
      const double scale = scale_tensor(source, saved.at("scale")).item<double>();
      return {{std::string("scale"), scale},
              {std::string("growth_tracker"), whole_field(saved, "growth_tracker")},
              {std::string("hysteresis_tracker"), whole_field(saved, "hysteresis_tracker")}};
    }
  }
  refuse_scaler("is missing: gradients of this run are times a loss scale");
}

}  // namespace

LossScale::LossScale(const ReplaySource& source) {
  const OptimizerConfig config = config_from_args(source.state.args());
  scaler_ = make_grad_scaler(config);
  if (scaler_ == nullptr || config.loss_scale) return;
  try {
    scaler_->load_state_dict(saved_scaler(source));
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::InvalidArgument) throw;
    refuse_scaler(error.problem());
  }
}

at::Tensor unscaled(const at::Tensor& grad, float inverse_scale) {
  if (inverse_scale == 1) return grad;
  return at::mul(grad.to(at::kFloat), static_cast<double>(inverse_scale));
}

}  // namespace optim
