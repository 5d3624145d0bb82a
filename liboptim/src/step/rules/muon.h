#pragma once

#include <optim/update_rule.h>

namespace optim {

std::unique_ptr<UpdateRule> make_muon(const MuonRule& config);

}  // namespace optim
