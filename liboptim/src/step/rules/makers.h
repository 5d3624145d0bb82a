#pragma once

#include <memory>

#include <optim/update_rule.h>

// What makes each of the library's rules; each in the file of its rule. `config` is that rule's.
namespace optim {

std::unique_ptr<UpdateRule> make_adam(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_adaptive_muon(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_lion(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_muon(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_sgd(const RuleConfig& config);
std::unique_ptr<UpdateRule> make_soap(const RuleConfig& config);

}  // namespace optim
