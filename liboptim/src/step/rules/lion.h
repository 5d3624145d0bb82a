#pragma once

#include <optim/update_rule.h>

namespace optim {

std::unique_ptr<UpdateRule> make_lion(const LionRule& config);

}  // namespace optim
