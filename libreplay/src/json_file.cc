#include "json_file.h"

#include <ckpt/error.h>
#include <ckpt/named_file.h>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace optim {
namespace {

using nlohmann::json;

constexpr uint64_t kFileBytesMax = uint64_t{1} << 20;

// JSON allows a key twice in one object; which of the values counts, each reader says otherwise.
class DuplicateKeys {
 public:
  bool operator()(json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) objects_.emplace_back();
    if (event == json::parse_event_t::object_end) objects_.pop_back();
    if (event != json::parse_event_t::key) return true;
    const auto [key, is_new] = objects_.back().insert(parsed.get<std::string>());
    if (!is_new && !found_) found_ = *key;
    return true;
  }
  const std::optional<std::string>& found() const { return found_; }

 private:
  std::vector<std::set<std::string>> objects_;  // those that are open, the outermost first
  std::optional<std::string> found_;
};

}  // namespace

json read_json_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  const std::string text = ckpt::read_named_file(path, kFileBytesMax);
  DuplicateKeys duplicates;
  json value = json::parse(
      text, [&](int, json::parse_event_t event, json& parsed) { return duplicates(event, parsed); },
      /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file}, "malformed JSON");
  }
  if (duplicates.found()) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file, .key = *duplicates.found()},
                      "appears twice in one object");
  }
  return value;
}

}  // namespace optim
