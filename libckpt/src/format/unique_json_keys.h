#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

namespace ckpt {

// Follows a parse through its events. nlohmann keeps the last of equal keys without a word.
class UniqueJsonKeys {
 public:
  // True for a key that the object around it has already.
  bool is_repeated(nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) seen_.emplace_back();
    if (event == Event::object_end) seen_.pop_back();
    return event == Event::key && !seen_.back().insert(parsed.get<std::string>()).second;
  }

 private:
  std::vector<std::unordered_set<std::string>> seen_;  // by depth of the open objects
};

}  // namespace ckpt
