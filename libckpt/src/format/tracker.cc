// latest_checkpointed_iteration.txt of a checkpoint root: which iteration it names.
#include <charconv>

#include <ckpt/convert.h>

#include "format/format.h"
#include "io/publish.h"

namespace ckpt {
namespace {

constexpr std::string_view kRelease = "release";
constexpr std::string_view kDigits = "0123456789";
constexpr uint64_t kTrackerBytesMax = 64;

std::string why_no_number(std::string_view text) {
  if (text.empty()) return "it is empty";
  if (text.starts_with("\xEF\xBB\xBF")) return "it begins with a byte order mark";
  if (text.find('\0') != text.npos) return "it is not plain ASCII text";  // UTF-16, most likely
  if (text.front() == '+' || text.front() == '-') return "the number has a sign";
  if (text.find_first_not_of(kDigits) == text.npos) return "the number is too large";
  if (text.find_first_not_of(" \t\r\n") != 0) return "it begins with white space";
  if (text.find_first_of(" \t\r\n") != text.npos) return "more than one word is in it";
  return "it is not a number";
}

[[noreturn]] void refuse(std::string_view text, const std::string& reason) {
  throw Error(ErrorCode::Corrupt, {kTrackerName, 0, {}},
              "expected an iteration or 'release', found '" + escaped(text) + "': " + reason,
              "the tracker holds an iteration in decimal digits and nothing else, 3 for "
              "iter_0000003; --iteration N opens one whatever it holds");
}

}  // namespace

std::optional<int64_t> tracked_iteration(std::string_view text) {
  if (text.size() > kTrackerBytesMax) {
    refuse(text.substr(0, kTrackerBytesMax), "it is longer than any iteration's number");
  }
  // Megatron writes no newline, people do.
  const std::string_view word = text.substr(0, text.find_last_not_of("\n\r ") + 1);
  if (word == kRelease) return std::nullopt;
  int64_t iteration = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), iteration);
  const bool is_number = error == std::errc() && end == word.data() + word.size();
  if (!is_number || word.front() == '-') refuse(word, why_no_number(word));
  return iteration;
}

std::string tracked_text(const File& tracker) {
  std::string text(std::min(tracker.size_bytes(), kTrackerBytesMax + 1), '\0');
  tracker.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::optional<int64_t> latest_iteration(const std::filesystem::path& root) {
  const auto text = text_of(root / kTrackerName);
  return text ? tracked_iteration(*text) : std::nullopt;
}

void set_latest(const std::filesystem::path& root, const std::string& folder_name) {
  std::string text = folder_name;  // "release"
  if (folder_name != kRelease) {
    const auto iteration = iteration_named(folder_name);
    if (!iteration) {
      throw Error(ErrorCode::InvalidArgument, {folder_name}, "is not the folder of an iteration");
    }
    const auto latest = latest_iteration(root);
    if (latest && *latest > *iteration) return;
    text = std::to_string(*iteration);
  }
  replace_text(root / kTrackerName, text);
}

bool clean_latest(const std::filesystem::path& root) {
  return remove_unfinished_text(root / kTrackerName);
}

}  // namespace ckpt
