// Averaging gradients over data-parallel processes, for trainers of which nothing else does.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <ckpt/error.h>
#include <algorithm>
#include <utility>

#include "step/layer_wise/layer_wise_sharding.h"

namespace optim {
namespace {

constexpr int64_t kRefused = 255;

// 0: none; else one more than the number of its type.
int64_t kind_of(const Param& param, const at::Tensor& grad) {
  if (!grad.defined()) return 0;
  const at::ScalarType type = grad.scalar_type();
  const bool is_float = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  const bool fits = grad.sizes() == param.param.sizes() && grad.is_contiguous();
  return is_float && fits ? 1 + static_cast<int64_t>(type) : kRefused;
}

}  // namespace

NamedGrad named_grad(const Param& param, at::Tensor grad) {
  const int64_t kind = kind_of(param, grad);
  return {&param.info, std::move(grad), kind};
}

void check_kinds(const std::vector<NamedGrad>& grads, Collectives& collectives) {
  if (grads.empty()) return;
  at::Tensor largest = at::zeros({2, static_cast<int64_t>(grads.size())}, at::kLong);
  auto* const kinds = largest.mutable_data_ptr<int64_t>();
  auto* const negated = kinds + grads.size();
  for (size_t i = 0; i < grads.size(); ++i) {
    kinds[i] = grads[i].kind;
    negated[i] = -grads[i].kind;
  }
  collectives.all_reduce_max(largest);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (kinds[i] == -negated[i] && kinds[i] != kRefused) continue;
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = grads[i].info->name},
                      "expected a contiguous gradient of a float type and of the parameter's "
                      "shape, on all processes or on none");
  }
}

namespace {

// In fp32 and in the order of ranks, whatever the group's own way to sum.
void average(const at::Tensor& grad, int64_t piece_bytes, Collectives& collectives) {
  const at::Tensor flat = grad.view({-1});
  const auto piece = std::max<int64_t>(1, piece_bytes / static_cast<int64_t>(grad.element_size()));
  for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
    const int64_t count = std::min(piece, flat.numel() - begin);
    const at::Tensor mine = flat.narrow(0, begin, count);
    const at::Tensor all = at::empty({collectives.size() * count}, mine.options());
    at::Tensor all_bytes = all.view(at::kByte), mine_bytes = mine.view(at::kByte);
    collectives.all_gather(all_bytes, mine_bytes);
    at::Tensor sum = at::zeros({count}, mine.options().dtype(at::kFloat));
    for (int64_t rank = 0; rank < collectives.size(); ++rank) {
      sum.add_(all.narrow(0, rank * count, count).to(at::kFloat));
    }
    mine.copy_(sum.div_(collectives.size()));
  }
}

}  // namespace

void LayerWiseDistributedOptimizer::allreduce_grads(
    const std::function<at::Tensor(const ParamInfo&)>& grad_of) {
  const at::NoGradGuard no_grad;
  LayerWiseSharding& s = *sharding_;
  const auto named = [&](const std::vector<SharedParam>& shared) {
    std::vector<NamedGrad> grads;
    for (const SharedParam& of : shared) {
      const Param& param = s.params[of.id];
      grads.push_back(named_grad(param, grad_of ? grad_of(param.info) : param.main_grad));
    }
    return grads;
  };
  const std::vector<NamedGrad> dense = named(s.dense_params), experts = named(s.expert_params);
  check_kinds(dense, s.dense);
  check_kinds(experts, s.experts);
  const auto average_all = [&](const std::vector<NamedGrad>& grads, Collectives& collectives) {
    if (collectives.size() == 1) return;
    for (const NamedGrad& of : grads) {
      if (of.grad.defined()) average(of.grad, s.options.gather_bucket_bytes, collectives);
    }
  };
  average_all(dense, s.dense);
  average_all(experts, s.experts);
}

}  // namespace optim
