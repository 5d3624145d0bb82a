// What latest and lineage say of iteration folders that they did not look at.
#include "inspect/elsewhere.h"

#include <ckpt/error.h>
#include <common/json.h>
#include <common/text.h>

namespace tools::inspect {

void warn_of_elsewhere(Console& console, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const std::string first = ckpt::escaped(names.front());
  console.warn(names.size() == 1
                   ? first +
                         " is a link that leads out of the root and was not checked; "
                         "--follow-links includes it"
                   : first + " and " + std::to_string(names.size() - 1) +
                         " more are links that lead out of the root and were not checked; "
                         "--follow-links includes them");
}

nlohmann::json names_to_json(const std::vector<std::string>& names) {
  nlohmann::json json = nlohmann::json::array();
  for (const std::string& name : names) json.push_back(json_text(name));
  return json;
}

}  // namespace tools::inspect
