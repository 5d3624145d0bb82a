#include "step/rules/muon.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/lerp.h>

#include <ckpt/error.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace optim {
namespace {

void decay(WeightDecayMethod method, const UpdateTarget& target, const StepContext& context) {
  const double wd = context.weight_decay;
  if (wd == 0) return;
  at::Tensor param = target.param;
  switch (method) {
    case WeightDecayMethod::Decoupled: param.add_(param, -wd * context.lr); break;
    case WeightDecayMethod::Independent: param.add_(param, -wd); break;
    case WeightDecayMethod::L2: at::Tensor(target.grad).add_(param, wd); break;
    case WeightDecayMethod::Palm: param.add_(param, -wd * context.lr * context.lr); break;
  }
}

class Muon final : public UpdateRule {
 public:
  explicit Muon(const MuonRule& config) : config_(config) {}

  std::span<const std::string_view> state_names() const override {
    static constexpr std::array<std::string_view, 1> kNames = {"momentum_buffer"};
    return kNames;
  }

  void update(const UpdateTarget& target, const StepContext& context) const override {
    if (target.param.dim() != 2) {
      throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = target.info->name},
                        "Muon updates matrices only");
    }
    init_state(target.param, *target.state);
    decay(config_.weight_decay_method, target, context);
    at::Tensor& momentum = target.state->at("momentum_buffer");
    momentum.lerp_(target.grad, 1 - config_.momentum);
    const at::Tensor direction =
        config_.nesterov ? at::lerp(target.grad, momentum, config_.momentum) : momentum;
    const bool splits = config_.qkv_split && target.info->attributes.is_qkv;
    const at::Tensor update =
        splits ? orthogonalized_qkv(*target.info, direction) : orthogonalized(direction);
    at::Tensor(target.param).add_(update, -context.lr);
  }

 private:
  at::Tensor orthogonalized(const at::Tensor& matrix) const {
    const double scale = muon_scale(config_.scale_mode, matrix.size(0), matrix.size(1));
    return newton_schulz(matrix, config_.newton_schulz)
        .mul_(scale)
        .mul_(config_.extra_scale_factor);
  }

  // The rows of a fused qkv weight repeat [query, key, value] once per query group. Each of the
  // three is orthogonalised as one matrix over all groups, with the scale of its own size.
  at::Tensor orthogonalized_qkv(const ParamInfo& info, const at::Tensor& matrix) const {
    const QkvSplit& split = *config_.qkv_split;
    const std::array<int64_t, 3> rows = {split.query_rows, split.key_rows, split.value_rows};
    const int64_t group_rows = rows[0] + rows[1] + rows[2];
    if (group_rows <= 0 || matrix.size(0) % group_rows != 0) {
      throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = info.name},
                        std::to_string(matrix.size(0)) + " rows are no multiple of the " +
                            std::to_string(group_rows) + " rows of a query group");
    }
    const int64_t groups = matrix.size(0) / group_rows;
    const int64_t columns = matrix.size(1);
    const at::Tensor by_group = matrix.view({groups, group_rows, columns});
    std::vector<at::Tensor> parts;
    int64_t first_row = 0;
    for (const int64_t count : rows) {
      const at::Tensor part =
          by_group.narrow(1, first_row, count).reshape({groups * count, columns});
      parts.push_back(orthogonalized(part).view({groups, count, columns}));
      first_row += count;
    }
    return at::cat(parts, 1).view({matrix.size(0), columns});
  }

  MuonRule config_;
};

}  // namespace

double muon_scale(MuonScaleMode mode, int64_t rows, int64_t columns) {
  const auto out = static_cast<double>(rows);
  const auto in = static_cast<double>(columns);
  switch (mode) {
    case MuonScaleMode::Spectral: return std::sqrt(std::max(out, in));
    case MuonScaleMode::UnitRmsNorm: return std::sqrt(out / in);
    case MuonScaleMode::ShapeScaling: return std::sqrt(std::max(1.0, out / in));
  }
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "unknown Muon scale mode");
}

std::unique_ptr<UpdateRule> make_muon(const MuonRule& config) {
  return std::make_unique<Muon>(config);
}

}  // namespace optim
