#include <charconv>

#include <ckpt/convert.h>

#include "format/format.h"
#include "io/publish.h"

namespace ckpt {
namespace {

constexpr std::string_view kIterationPrefix = "iter_";

// Of "3", "3\n" or "0000003".
std::optional<uint64_t> leading_number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

}  // namespace

void set_latest(const std::filesystem::path& root, const std::string& folder_name) {
  const std::filesystem::path tracker = root / kTrackerName;
  std::string text = folder_name;  // "release"
  if (folder_name.starts_with(kIterationPrefix)) {
    const auto iteration =
        leading_number(std::string_view(folder_name).substr(kIterationPrefix.size()));
    if (!iteration) {
      throw Error(ErrorCode::InvalidArgument, {folder_name}, "is no folder of an iteration");
    }
    const auto latest = leading_number(text_of(tracker).value_or(""));
    if (latest && *latest > *iteration) return;
    text = std::to_string(*iteration);
  }
  replace_text(tracker, text);
}

}  // namespace ckpt
