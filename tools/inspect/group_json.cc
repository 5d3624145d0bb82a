// Parameter groups and the work of ranks, as JSON.
#include "inspect/group_json.h"

#include <common/json.h>
#include <training/optimizer_facts.h>

#include "inspect/value_text.h"

namespace tools::inspect {

nlohmann::json to_json(const optim::StoredGroup& group, const optim::RunFacts& run) {
  nlohmann::json json = {{"optimizer", group.optimizer},
                         {"rule", rule_of(group, run)},
                         {"group", group.group},
                         {"settings", nlohmann::json::object()}};
  if (!group.file.empty()) json["file"] = json_text(group.file);
  if (group.param_count) json["parameters"] = *group.param_count;
  if (group.element_count) json["elements"] = *group.element_count;
  for (const auto& [setting, value] : group.settings) {
    json["settings"][json_text(setting)] = value_to_json(value);
  }
  return json;
}

nlohmann::json to_json(const optim::RankLoad& load) {
  nlohmann::json json = {{"rank", load.rank},
                         {"parameters", load.param_count},
                         {"elements", load.element_count},
                         {"state_bytes", load.state_bytes}};
  if (load.cost) json["cost"] = *load.cost;
  return json;
}

}  // namespace tools::inspect
