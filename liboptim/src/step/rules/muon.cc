#include <optim/newton_schulz.h>

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
    const at::Tensor direction =
        muon_direction(item, {config_.momentum, config_.nesterov, config_.weight_decay_method});
    const at::Tensor update =
        for_each_part(target, direction, config_.qkv_split,
                      [this](const MatrixPart& part) { return orthogonalized(part); });
    for_each_chunk(target.param.numel(), [&](int64_t begin, int64_t count) {
      chunk_of(target.param, begin, count).add_(chunk_of(update, begin, count), -item.context.lr);
    });
    write_rounded(target);
  }

  // With the scale of its own size, over all ranks.
  at::Tensor orthogonalized(const MatrixPart& part) const {
    const double scale = muon_scale(config_.scale_mode, part.whole_size(0), part.whole_size(1));
    return orthogonalize(part, config_.newton_schulz).mul_(scale).mul_(config_.extra_scale_factor);
  }

  MuonRule config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const RuleConfig& config) {
  return std::make_unique<Muon>(*config.get_if<MuonRule>());
}

}  // namespace optim
