#include <optim/emerging_rules.h>
#include <optim/newton_schulz.h>
#include <optim/update_rule.h>

#include <algorithm>
#include <cmath>

#include <ATen/ops/div.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/square.h>

#include "step/loops/grad_stats_kernels.h"
#include "step/loops/single_thread.h"
#include "step/rules/chunks.h"
#include "step/rules/makers.h"
#include "step/rules/muon_direction.h"

namespace optim {
namespace {

double norm_of(const at::Tensor& tensor) { return std::sqrt(sum_of_squares(tensor)); }

// Muon with a second moment of the orthogonalised direction.
class AdaptiveMuon final : public UpdateRule {
 public:
  explicit AdaptiveMuon(const AdaptiveMuonRule& config) : UpdateRule(config), config_(config) {
    if (config.muon.qkv_split) check_split(*config.muon.qkv_split);
  }

  void check(const UpdateTarget& target) const override { check_matrix(target, "adaptive Muon"); }

  void update_all(std::span<const UpdateItem> items) const override {
    update_matrices(*this, items, [this](const UpdateItem& item) { update_one(item); });
  }

 private:
  void update_one(const UpdateItem& item) const {
    const UpdateTarget& target = item.target;
    const bool is_namo = config_.moment2_method == Moment2Method::Namo;
    const double grad_norm = is_namo ? norm_of(effective_grad(item)) : 0;
    const MuonRule& muon = config_.muon;
    const at::Tensor direction = muon_direction(item, muon);
    const at::Tensor orthogonal =
        for_each_part(target, direction, muon.qkv_split, [&](const MatrixPart& part) {
          return scales_before() ? scaled_orthogonal(part, muon)
                                 : orthogonalize(part, muon.newton_schulz);
        });
    if (is_namo) {
      scale_by_norms(item, orthogonal, norm_of(direction), grad_norm);
    } else if (config_.moment2_method == Moment2Method::AdaMuon) {
      divide_by_element(item, orthogonal);
    } else {
      divide_by_line(item, orthogonal);
    }
    write_rounded(target);
  }

  bool scales_before() const {
    return config_.era == EmergingOptimizers::V0_2 || config_.scales_twice;
  }

  // Of the whole matrix as this rank has it, behind the second moment.
  struct Scales {
    double size = 1, extra = 1;
  };
  Scales scales_behind(const at::Tensor& matrix) const {
    if (config_.era == EmergingOptimizers::V0_2) return {};
    return {muon_scale(config_.muon.scale_mode, matrix.size(0), matrix.size(1)),
            config_.muon.extra_scale_factor};
  }

  // p -= lr update; `update` is a chunk of its own.
  static void apply(const UpdateItem& item, int64_t begin, at::Tensor update,
                    const Scales& scales) {
    if (scales.size != 1) update.mul_(scales.size);
    if (scales.extra != 1) update.mul_(scales.extra);
    chunk_of(item.target.param, begin, update.numel()).add_(update, -item.context.lr);
  }

  // V = lerp(V, O^2, 1 - beta2); O / (sqrt(V) + eps), element by element.
  void divide_by_element(const UpdateItem& item, const at::Tensor& orthogonal) const {
    const at::Tensor& moment = item.target.state->at("moment2_buffer");
    const Scales scales = scales_behind(orthogonal);
    for_each_chunk(orthogonal.numel(), [&](int64_t begin, int64_t count) {
      const at::Tensor o = chunk_of(orthogonal, begin, count);
      at::Tensor v = chunk_of(moment, begin, count);
      v.lerp_(at::square(o), 1 - config_.beta2);
      apply(item, begin, at::div(o, at::sqrt(v).add_(config_.eps)), scales);
    });
  }

  // V = lerp(V, mean of O^2 along a line, 1 - beta2); O rsqrt(max(V, eps)), in 0.3 with O's norm.
  void divide_by_line(const UpdateItem& item, const at::Tensor& orthogonal) const {
    at::Tensor& moment = item.target.state->at("moment2_buffer");
    at::Tensor update;
    {
      const SingleThread single_thread;  // sums in one order for any number of threads
      const int64_t along = orthogonal.size(0) >= orthogonal.size(1) ? 1 : 0;
      moment.lerp_(at::square(orthogonal).mean(at::OptionalIntArrayRef(along), /*keepdim=*/true),
                   1 - config_.beta2);
      update = at::mul(orthogonal, moment.clamp_min(config_.eps).rsqrt_());
    }
    if (config_.era == EmergingOptimizers::V0_3) {
      const auto norm = static_cast<float>(norm_of(orthogonal));
      const auto now = static_cast<float>(norm_of(update));
      update.mul_(norm / std::max(now, static_cast<float>(config_.eps)));
    }
    const Scales scales = scales_behind(orthogonal);
    for_each_chunk(update.numel(), [&](int64_t begin, int64_t count) {
      apply(item, begin, chunk_of(update, begin, count), scales);
    });
  }

  // v = lerp(v, |g|^2, 1 - beta2); O |U| / (sqrt(v) + eps).
  void scale_by_norms(const UpdateItem& item, const at::Tensor& orthogonal, double direction_norm,
                      double grad_norm) const {
    at::Tensor& moment = item.target.state->at("moment2_buffer");
    const auto norm = static_cast<float>(grad_norm);
    auto& v = *moment.mutable_data_ptr<float>();
    v += static_cast<float>(1 - config_.beta2) * (norm * norm - v);
    const float factor =
        static_cast<float>(direction_norm) / (std::sqrt(v) + static_cast<float>(config_.eps));
    const Scales scales = scales_behind(orthogonal);
    for_each_chunk(orthogonal.numel(), [&](int64_t begin, int64_t count) {
      apply(item, begin, chunk_of(orthogonal, begin, count).mul_(factor), scales);
    });
  }

  AdaptiveMuonRule config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adaptive_muon(const RuleConfig& config) {
  return std::make_unique<AdaptiveMuon>(*config.get_if<AdaptiveMuonRule>());
}

}  // namespace optim
