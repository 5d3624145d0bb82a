#pragma once

#include <cmath>
#include <limits>
#include <string>

#include <common/json.h>
#include <replay/comparison.h>

namespace tools::step_replay {

// JSON has no infinity: the largest double stands for it.
inline double finite(double value) { return std::min(value, std::numeric_limits<double>::max()); }

inline nlohmann::json difference_json(const std::string& tensor, const optim::Difference& worst) {
  return {{"tensor", json_text(tensor)},
          {"max_abs", finite(worst.max_abs)},
          {"max_rel", finite(worst.max_rel)},
          {"max_scaled", finite(worst.max_scaled)},
          {"max_ulp", finite(worst.max_ulp)}};
}

}  // namespace tools::step_replay
