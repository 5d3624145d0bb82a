// AdamArithmetic::TransformerEngine's only difference from FusedAdam.
#pragma once

#include <optim/rule_config.h>

namespace optim {

// TransformerEngine and Apex take betas as float. 1 - beta is exact then, and of 1 - beta^step they
// take the power in double, too (docs/decisions/0173).
inline AdamRule with_fp32_betas(AdamRule rule) {
  rule.beta1 = static_cast<float>(rule.beta1);
  rule.beta2 = static_cast<float>(rule.beta2);
  return rule;
}

}  // namespace optim
