#pragma once

#include <nlohmann/json.hpp>

#include <training/lineage.h>

namespace tools::inspect {

nlohmann::json lineage_to_json(const optim::Lineage& lineage);

}  // namespace tools::inspect
