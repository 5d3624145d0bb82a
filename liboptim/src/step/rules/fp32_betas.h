// AdamArithmetic::TransformerEngine's only difference from FusedAdam.
#pragma once

#include <optim/rule_config.h>

namespace optim {

// Not inlined: of two of these beside each other GCC 12 makes vectors at -O2, and forgets to round.
[[gnu::noinline]] inline double rounded_to_float(double value) { return static_cast<float>(value); }

// TransformerEngine and Apex take betas as float. 1 - beta is exact then, and of 1 - beta^step they
// take the power in double, too.
inline AdamRule with_fp32_betas(AdamRule rule) {
  rule.beta1 = rounded_to_float(rule.beta1);
  rule.beta2 = rounded_to_float(rule.beta2);
  return rule;
}

}  // namespace optim
