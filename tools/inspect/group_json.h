#pragma once

#include <training/groups.h>
#include <training/run_facts.h>
#include <nlohmann/json.hpp>

namespace tools::inspect {

nlohmann::json to_json(const optim::StoredGroup& group, const optim::RunFacts& run);
nlohmann::json to_json(const optim::RankLoad& load);

}  // namespace tools::inspect
