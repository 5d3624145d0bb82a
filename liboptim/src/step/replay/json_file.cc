#include "step/replay/json_file.h"

#include <ckpt/error.h>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace optim {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kFileBytesMax = std::uintmax_t{1} << 20;

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
  std::error_code error;
  const std::uintmax_t count_bytes = std::filesystem::file_size(path, error);
  if (error) {
    const bool is_missing = error == std::errc::no_such_file_or_directory;
    throw ckpt::Error(is_missing ? ckpt::ErrorCode::NotFound : ckpt::ErrorCode::IoFailure,
                      {.file = file}, error.message());
  }
  if (count_bytes > kFileBytesMax) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file}, "JSON of more than 1 MiB");
  }
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = file}, "cannot be read");
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
