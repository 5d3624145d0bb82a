#pragma once

#include <vector>

#include <training/verify.h>
#include <nlohmann/json.hpp>

namespace tools::inspect {

nlohmann::json to_json(const ckpt::Finding& finding);
nlohmann::json to_json(const std::vector<optim::NotChecked>& list);
nlohmann::json counts_json(const optim::VerifyReport& report);  // {"checked": ..., ...}

}  // namespace tools::inspect
