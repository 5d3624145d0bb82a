#pragma once

#include <optim/update_rule.h>

namespace optim {

std::unique_ptr<UpdateRule> make_adam(const AdamRule& config);

}  // namespace optim
