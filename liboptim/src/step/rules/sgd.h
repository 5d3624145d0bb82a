#pragma once

#include <optim/update_rule.h>

namespace optim {

std::unique_ptr<UpdateRule> make_sgd(const SgdRule& config);

}  // namespace optim
