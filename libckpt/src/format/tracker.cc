// The tracker of a checkpoint root: which iteration it names.

#include <ckpt/error.h>
#include <ckpt/root.h>

#include "base/text.h"
#include "format/format.h"
#include "io/directory.h"
#include "io/publish.h"

namespace ckpt {
namespace {

constexpr std::string_view kDigits = "0123456789";

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

[[noreturn]] void refuse(std::string_view text, const std::string& reason,
                         const FolderConvention& convention) {
  throw Error(ErrorCode::Corrupt, {std::string(convention.tracker), 0, {}},
              "expected an iteration or '" + std::string(convention.unnumbered) + "', found '" +
                  escaped(text) + "': " + reason,
              "the tracker holds an iteration in decimal digits and nothing else, 3 for " +
                  iteration_folder(3, convention) + "; --iteration N opens one whatever it holds");
}

}  // namespace

std::optional<int64_t> tracked_iteration(std::string_view text,
                                         const FolderConvention& convention) {
  if (text.size() > kTrackerBytesMax) {
    refuse(text.substr(0, kTrackerBytesMax), "it is longer than any iteration's number",
           convention);
  }
  // Programs write no newline, people do.
  const std::string_view word = text.substr(0, text.find_last_not_of("\n\r ") + 1);
  if (word == convention.unnumbered) return std::nullopt;
  const auto iteration = number_in<int64_t>(word);
  if (!iteration || word.front() == '-') refuse(word, why_no_number(word), convention);
  return iteration;
}

namespace {

// It would be replaced by a file, and what it leads to would go on naming another iteration.
void refuse_other_than_file(const Place& tracker) {
  const EntryKind kind = kind_of_entry(tracker);
  if (kind == EntryKind::Absent || kind == EntryKind::File) return;
  throw Error(ErrorCode::AlreadyExists, {tracker.path().string()},
              std::string("is ") + (kind == EntryKind::Link ? "a symbolic link" : "no file") +
                  "; a tracker is replaced by a file, and what stands there would be lost",
              "make it a file, or remove it");
}

std::optional<int64_t> latest_in(const Place& root, const FolderConvention& convention) {
  const std::string name(convention.tracker);
  refuse_other_than_file(root / name);
  check_unfinished_text(root, name);
  const auto text = text_of(root / name);
  return text ? tracked_iteration(*text, convention) : std::nullopt;
}

}  // namespace

std::optional<int64_t> latest_iteration(const std::filesystem::path& root,
                                        const FolderConvention& convention) {
  return latest_in(Place::held(root), convention);
}

void set_latest(const std::filesystem::path& root, const std::string& folder_name,
                const FolderConvention& convention) {
  const Place held = Place::held(root);
  const auto latest = latest_in(held, convention);
  std::string text = folder_name;
  if (folder_name != convention.unnumbered) {
    const auto iteration = iteration_named(folder_name, convention);
    if (!iteration) {
      throw Error(ErrorCode::InvalidArgument, {folder_name}, "is not the folder of an iteration");
    }
    if (latest && *latest > *iteration) return;
    text = std::to_string(*iteration);
  }
  replace_text(held, std::string(convention.tracker), text);
}

bool clean_latest(const std::filesystem::path& root, const FolderConvention& convention) {
  if (!is_there(root)) return false;
  return remove_unfinished_text(Place::held(root), std::string(convention.tracker));
}

}  // namespace ckpt
