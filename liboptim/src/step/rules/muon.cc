#include <optim/newton_schulz.h>
#include <optim/update_rule.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>

#include <array>
#include <string>
#include <vector>

#include "rules/refuse_key.h"
#include "step/loops/tiled_products.h"
#include "step/rules/chunks.h"
#include "step/rules/makers.h"
#include "step/rules/muon_direction.h"

namespace optim {
namespace {

class Muon final : public UpdateRule {
 public:
  explicit Muon(const MuonRule& config) : UpdateRule(config), config_(config) {
    if (config.qkv_split) check_split(*config.qkv_split);
  }

  void check(const UpdateTarget& target) const override { check_matrix(target, "Muon"); }

  void update_all(std::span<const UpdateItem> items) const override {
    update_matrices(*this, items, [this](const UpdateItem& item) { update_one(item); });
  }

 private:
  void update_one(const UpdateItem& item) const {
    const UpdateTarget& target = item.target;
    const at::Tensor update =
        for_each_part(target, muon_direction(item, config_), config_.qkv_split,
                      [this](const MatrixPart& part) { return scaled_orthogonal(part, config_); });
    for_each_chunk(target.param.numel(), [&](int64_t begin, int64_t count) {
      chunk_of(target.param, begin, count).add_(chunk_of(update, begin, count), -item.context.lr);
    });
    write_rounded(target);
  }

  MuonRule config_;
};

// Of `count` rows out of each `group_rows`, on every rank.
MatrixSplit split_of_rows(const MatrixSplit& whole, int64_t count, int64_t group_rows) {
  MatrixSplit split = whole;
  if (split.dim != 0) return split;
  for (int64_t& extent : split.extents) extent = extent / group_rows * count;
  return split;
}

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const RuleConfig& config) {
  return std::make_unique<Muon>(*config.get_if<MuonRule>());
}

at::Tensor muon_direction(const UpdateItem& item, const MuonRule& rule) {
  const at::Tensor& whole = item.target.state->at("momentum_buffer");
  at::Tensor direction = rule.nesterov ? at::empty_like(whole) : whole;
  ParamState momentum_alone = {{"momentum_buffer", whole}};  // other states have other shapes
  UpdateItem with_momentum = item;
  with_momentum.target.state = &momentum_alone;
  update_chunks(with_momentum, [&](const UpdateItem& chunk) {
    at::Tensor grad = effective_grad(chunk);
    apply_decay(rule.weight_decay_method, chunk, grad);
    at::Tensor& momentum = chunk.target.state->at("momentum_buffer");
    momentum.lerp_(grad, 1 - rule.momentum);
    if (!rule.nesterov) return;
    const int64_t begin = momentum.storage_offset() - whole.storage_offset();
    chunk_of(direction, begin, momentum.numel()).copy_(at::lerp(grad, momentum, rule.momentum));
  });
  return direction;
}

int64_t MatrixPart::whole_size(int dim) const {
  return split != nullptr && split->dim == dim ? split->whole_extent() : values.size(dim);
}

at::Tensor orthogonalize(const MatrixPart& part, const NewtonSchulzOptions& options) {
  if (part.split == nullptr) return newton_schulz(part.values, options);
  return newton_schulz_tp(part.values, options, *part.split);
}

at::Tensor scaled_orthogonal(const MatrixPart& part, const MuonRule& rule) {
  const double scale = muon_scale(rule.scale_mode, part.whole_size(0), part.whole_size(1));
  return orthogonalize(part, rule.newton_schulz).mul_(scale).mul_(rule.extra_scale_factor);
}

at::Tensor for_each_part(const UpdateTarget& target, const at::Tensor& matrix,
                         const std::optional<QkvSplit>& qkv,
                         const std::function<at::Tensor(const MatrixPart&)>& orthogonalized) {
  if (!qkv || !target.info->attributes.is_qkv) return orthogonalized({matrix, target.split});
  const std::array<int64_t, 3> rows = {qkv->query_rows, qkv->key_rows, qkv->value_rows};
  const int64_t group_rows = rows[0] + rows[1] + rows[2];
  if (matrix.size(0) % group_rows != 0) {
    refuse_key(target.info->name, std::to_string(matrix.size(0)) +
                                      " rows are not a multiple of the " +
                                      std::to_string(group_rows) + " rows of a query group");
  }
  const int64_t groups = matrix.size(0) / group_rows;
  const int64_t columns = matrix.size(1);
  const at::Tensor by_group = matrix.view({groups, group_rows, columns});
  std::vector<at::Tensor> parts;
  int64_t first_row = 0;
  for (const int64_t count : rows) {
    const at::Tensor part = by_group.narrow(1, first_row, count).reshape({groups * count, columns});
    const MatrixSplit split =
        target.split != nullptr ? split_of_rows(*target.split, count, group_rows) : MatrixSplit();
    const MatrixSplit* const shared = target.split != nullptr ? &split : nullptr;
    parts.push_back(orthogonalized({part, shared}).view({groups, count, columns}));
    first_row += count;
  }
  return at::cat(parts, 1).view({matrix.size(0), columns});
}

void check_split(const QkvSplit& split) {
  constexpr int64_t kRowsMax = int64_t{1} << 40;  // their sum fits
  for (const int64_t rows : {split.query_rows, split.key_rows, split.value_rows}) {
    if (rows > 0 && rows <= kRowsMax) continue;
    refuse_key("muon_split_qkv", "muon_split_qkv needs three positive numbers of rows, found " +
                                     std::to_string(rows));
  }
}

void check_matrix(const UpdateTarget& target, const char* rule) {
  if (target.param.dim() == 2) return;
  refuse_key(target.info->name, std::string(rule) + " updates matrices only");
}

void update_matrices(const UpdateRule& rule, std::span<const UpdateItem> items,
                     const std::function<void(const UpdateItem&)>& update_one) {
  std::vector<const UpdateItem*> small;
  for (const UpdateItem& item : items) {
    rule.check(item.target);
    rule.init_state(item.target.param, *item.target.state);
    if (is_one_tile(item.target.param) && item.target.split == nullptr) {
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

}  // namespace optim
