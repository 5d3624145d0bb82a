#pragma once

#include <memory>

#include <optim/update_rule.h>

// What the library's rules have in common.
namespace optim {

// What makes each of them, in the file of its rule. `config` is that rule's.
std::unique_ptr<UpdateRule> make_adam(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_adaptive_muon(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_lion(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_muon(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_sgd(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_soap(const RuleConfig& config);

// fp32(grad * grad_scale): the caller's own tensor where that is fp32 and the scale is 1.
at::Tensor effective_grad(const UpdateItem& item);

// Decay that comes before everything else. L2 changes `grad`.
void apply_decay(WeightDecayMethod method, const UpdateItem& item, at::Tensor& grad);

// Copies the parameter to `rounded` where that is wanted.
void write_rounded(const UpdateTarget& target);

}  // namespace optim
