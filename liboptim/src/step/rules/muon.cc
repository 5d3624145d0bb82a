#include "step/rules/muon.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>

#include <ckpt/error.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "step/rules/chunks.h"
#include "step/rules/effective_grad.h"
#include "step/loops/tiled_products.h"

namespace optim {
namespace {

class Muon final : public UpdateRule {
 public:
  explicit Muon(const MuonRule& config) : config_(config) {
    if (config.qkv_split) check(*config.qkv_split);
  }

  std::span<const std::string_view> state_names() const override {
    static constexpr std::array<std::string_view, 1> kNames = {"momentum_buffer"};
    return kNames;
  }

  // Matrices of one tile are computed by one thread each, larger ones by all threads together:
  // the products' tiles are the same either way.
  void update_all(std::span<const UpdateItem> items) const override {
    std::vector<const UpdateItem*> small;
    for (const UpdateItem& item : items) {
      check(item.target);
      init_state(item.target.param, *item.target.state);
      if (is_one_tile(item.target.param)) {
        small.push_back(&item);
      } else {
        update_one(item);
      }
    }
    at::parallel_for(0, static_cast<int64_t>(small.size()), 1, [&](int64_t begin, int64_t end) {
      const at::NoGradGuard no_grad;
      for (int64_t i = begin; i < end; ++i) update_one(*small[static_cast<size_t>(i)]);
    });
  }

 private:
  static void check(const QkvSplit& split) {
    constexpr int64_t kRowsMax = int64_t{1} << 40;  // their sum fits
    for (const int64_t rows : {split.query_rows, split.key_rows, split.value_rows}) {
      if (rows > 0 && rows <= kRowsMax) continue;
      throw ckpt::Error(
          ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = "muon_split_qkv"},
          "muon_split_qkv needs three positive numbers of rows, found " + std::to_string(rows));
    }
  }

  void check(const UpdateTarget& target) const {
    if (target.param.dim() == 2) return;
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = target.info->name},
                      "Muon updates matrices only");
  }

  void update_one(const UpdateItem& item) const {
    const UpdateTarget& target = item.target;
    at::Tensor direction = target.state->at("momentum_buffer");
    if (config_.nesterov) direction = at::empty_like(direction);
    update_chunks(item, [&](const UpdateItem& chunk) {
      at::Tensor grad = effective_grad(chunk);
      apply_decay(config_.weight_decay_method, chunk, grad);
      at::Tensor& momentum = chunk.target.state->at("momentum_buffer");
      momentum.lerp_(grad, 1 - config_.momentum);
      if (!config_.nesterov) return;
      const int64_t begin =
          momentum.storage_offset() - target.state->at("momentum_buffer").storage_offset();
      chunk_of(direction, begin, momentum.numel())
          .copy_(at::lerp(grad, momentum, config_.momentum));
    });
    const bool splits = config_.qkv_split && target.info->attributes.is_qkv;
    const at::Tensor update =
        splits ? orthogonalized_qkv(*target.info, direction) : orthogonalized(direction);
    for_each_chunk(target.param.numel(), [&](int64_t begin, int64_t count) {
      chunk_of(target.param, begin, count).add_(chunk_of(update, begin, count), -item.context.lr);
    });
    write_rounded(target);
  }

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
    if (matrix.size(0) % group_rows != 0) {
      throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = info.name},
                        std::to_string(matrix.size(0)) + " rows are not a multiple of the " +
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
