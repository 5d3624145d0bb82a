#include <algorithm>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>
#include <ckpt/folder_convention.h>
#include <ckpt/root.h>

#include "base/text.h"
#include "format/format.h"
#include "format/path_errors.h"
#include "io/directory.h"
#include "io/publish.h"
#include "remote/remote_folder.h"
#include "remote/s3_writer.h"
#include "remote/url_text.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kHeadBytes = 512;  // enough to tell formats apart
constexpr std::string_view kDigits = "0123456789";

std::optional<int64_t> iteration_of(const fs::path& folder, const FolderConvention& convention) {
  return iteration_named(folder.filename().string(), convention);
}

// Whether a program of the convention would call the folder of this iteration so.
bool is_name_of(int64_t iteration, const std::string& name, const FolderConvention& convention) {
  if (convention.iteration_digits != 0) return name == iteration_folder(iteration, convention);
  return name.find_first_not_of(kDigits, convention.iteration_prefix.size()) == name.npos;
}

bool leads_inside(const Folder& source, const fs::path& root, const std::string& name) {
  try {
    source.check_inside(root, name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string tracked_folder(const fs::path& root, const OpenOptions& options) {
  const FolderConvention& convention = *options.convention;
  const std::string tracker(convention.tracker);
  const auto file =
      options.source->open(root, {tracker, tracker, links_if(options.limits.follow_links)});
  const auto iteration = tracked_iteration(head_of(*file, kTrackerBytesMax + 1), convention);
  return iteration ? iteration_folder(*iteration, convention) : std::string(convention.unnumbered);
}

bool is_root(const Folder& source, const fs::path& folder, const FolderConvention* convention) {
  return convention != nullptr && source.has(folder / convention->tracker);
}

std::optional<Location> find_in_folder(const Folder& source, const fs::path& folder,
                                       const FolderConvention* convention) {
  Location location;
  location.folder = folder;
  location.convention = convention;
  if (convention != nullptr) {
    location.iteration = iteration_of(source.resolved(folder), *convention);
  }
  for (const FormatRow& row : formats()) {
    if (row.is_folder == nullptr || !row.is_folder(source, location)) continue;
    location.format = row.format;
    return location;
  }
  const bool has_own = convention != nullptr && !convention->state_folder.empty() &&
                       source.has(folder / convention->beside_state_folder) &&
                       source.has(folder / convention->state_folder);
  if (!has_own) return std::nullopt;
  auto below = find_in_folder(source, folder / convention->state_folder, convention);
  if (below) below->was_root = true;  // what is beside belongs to it
  return below;
}

// An iteration of a root, whose tracker named it or the user.
Location find_below(const fs::path& root, const std::string& name, const OpenOptions& options) {
  const Folder& source = *options.source;
  if (!options.limits.follow_links) source.check_inside(root, name);
  auto location = find_in_folder(source, root / name, options.convention);
  if (!location) refuse_folder(source, root / name, options.convention);
  location->was_root = true;
  return *location;
}

Location find_tracked(const fs::path& root, const OpenOptions& options) {
  const std::string name = tracked_folder(root, options);
  if (options.source->kind_of(root / name) != EntryKind::Folder) {
    throw Error(ErrorCode::NotFound, {(root / name).string()},
                "the folder that " + std::string(options.convention->tracker) + " names is missing",
                hint_of_iterations(*options.source, root, *options.convention));
  }
  return find_below(root, name, options);
}

// In a root, or in that iteration's own folder.
Location find_iteration(const fs::path& path, const OpenOptions& options) {
  if (options.convention == nullptr) {
    throw Error(ErrorCode::InvalidArgument, {path.string()},
                "iterations are found with a convention; expected OpenOptions::convention");
  }
  const int64_t iteration = *options.iteration;
  const std::string name = iteration_folder(iteration, *options.convention);
  const Folder& source = *options.source;
  if (source.kind_of(path / name) == EntryKind::Folder) return find_below(path, name, options);
  auto location = find_in_folder(source, path, options.convention);
  if (location && location->iteration == iteration) return *location;
  refuse_iteration(source, path, iteration, *options.convention);
}

Location find_in_directory(const fs::path& path, const OpenOptions& options) {
  if (options.iteration) return find_iteration(path, options);
  const Folder& source = *options.source;
  if (is_root(source, path, options.convention)) return find_tracked(path, options);
  if (auto location = find_in_folder(source, path, options.convention)) return *location;
  refuse_folder(source, path, options.convention);
}

Location find_in_file(const fs::path& path, const OpenOptions& options) {
  const std::string name = path.filename().string();
  Location location;
  location.convention = options.convention;
  location.folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const auto file = options.source->open(location.folder, {name, name, Links::MayLeadOut});
  const std::string head = head_of(*file, kHeadBytes);
  refuse_part(*options.source, path, head, options.convention);
  location.only_file = name;
  location.named_file = true;
  for (const FormatRow& row : formats()) {
    if (row.is_file == nullptr || !row.is_file({name, head, file->size_bytes()}, location))
      continue;
    location.format = row.format;
    return location;
  }
  refuse_file(path, *file);
}

// The tracker of a checkpoint root: which iteration it names.

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

// It would be replaced by a file, and what it leads to would go on naming another iteration.
void refuse_other_than_file(const Place& tracker) {
  const EntryKind kind = kind_of_entry(tracker);
  if (kind == EntryKind::Absent || kind == EntryKind::File) return;
  throw Error(ErrorCode::AlreadyExists, {tracker.path().string()},
              std::string("is ") + (kind == EntryKind::Link ? "a symbolic link" : "no file") +
                  "; a tracker is replaced by a file, and what stands there would be lost",
              "make it a file, or remove it");
}

// The tracker of a root in an object store.
std::string key_of_tracker(const fs::path& root, const FolderConvention& convention) {
  return parse_address(root / convention.tracker).path;
}

std::optional<int64_t> iteration_in(const std::optional<S3Writer::Text>& tracker,
                                    const FolderConvention& convention) {
  return tracker ? tracked_iteration(tracker->text, convention) : std::nullopt;
}

std::optional<int64_t> latest_in(const Place& root, const FolderConvention& convention) {
  const std::string name(convention.tracker);
  refuse_other_than_file(root / name);
  check_unfinished_text(root, name);
  const auto text = text_of(root / name);
  return text ? tracked_iteration(*text, convention) : std::nullopt;
}

}  // namespace

std::string iteration_folder(int64_t iteration, const FolderConvention& convention) {
  std::string digits = std::to_string(iteration);
  if (digits.size() < convention.iteration_digits) {
    digits.insert(0, convention.iteration_digits - digits.size(), '0');
  }
  return std::string(convention.iteration_prefix) + digits;
}

bool holds_checkpoint(const Folder& source, const fs::path& folder,
                      const FolderConvention* convention) {
  return is_root(source, folder, convention) ||
         find_in_folder(source, folder, convention).has_value();
}

std::optional<int64_t> iteration_named(std::string_view folder_name,
                                       const FolderConvention& convention) {
  if (!folder_name.starts_with(convention.iteration_prefix)) return std::nullopt;
  const auto number = number_in<int64_t>(folder_name.substr(convention.iteration_prefix.size()));
  return number && *number >= 0 ? number : std::nullopt;
}

Location find_checkpoint(const fs::path& path, const OpenOptions& options) {
  const EntryKind kind = options.source->kind_of(path);
  if (kind == EntryKind::Absent) refuse_missing(*options.source, path);
  if (kind != EntryKind::Folder && options.iteration) {
    throw Error(ErrorCode::InvalidArgument, {path.string()},
                "is not a folder; --iteration chooses one iteration of a checkpoint root",
                "leave out --iteration");
  }
  if (kind != EntryKind::Folder && kind != EntryKind::File) {
    throw Error(ErrorCode::Unsupported, {path.string()}, "neither a file nor a folder");
  }
  Location location =
      kind == EntryKind::Folder ? find_in_directory(path, options) : find_in_file(path, options);
  location.source = options.source;
  return location;
}

std::vector<IterationFolder> iterations_in(const Folder& source, const fs::path& root,
                                           const FolderConvention& convention,
                                           const Limits& limits) {
  if (!source.has(root)) refuse_missing(source, root);
  std::vector<IterationFolder> folders;
  for (const std::string& name : source.list(root)) {
    const auto iteration = iteration_of(root / name, convention);
    const bool is_folder = iteration && is_name_of(*iteration, name, convention) &&
                           source.kind_of(root / name) == EntryKind::Folder;
    if (is_folder && (limits.follow_links || leads_inside(source, root, name)))
      folders.push_back({*iteration, root / name});
  }
  std::ranges::sort(folders, std::ranges::greater(), &IterationFolder::iteration);
  return folders;
}

std::vector<std::string> iterations_elsewhere(const fs::path& root,
                                              const FolderConvention& convention) {
  const auto source = source_of(root);
  Limits everywhere;
  everywhere.follow_links = true;
  std::vector<std::string> names;
  for (const IterationFolder& folder : iterations_in(*source, root, convention, everywhere)) {
    std::string name = folder.path.filename().string();
    if (!leads_inside(*source, root, name)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

std::vector<IterationFolder> list_iterations(const fs::path& root,
                                             const FolderConvention& convention,
                                             const Limits& limits) {
  return iterations_in(*source_of(root), root, convention, limits);
}

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

std::optional<int64_t> latest_iteration(const std::filesystem::path& root,
                                        const FolderConvention& convention) {
  if (is_in_store(root)) {
    return iteration_in(writer_to(root)->text_of(key_of_tracker(root, convention)), convention);
  }
  return latest_in(Place::held(root), convention);
}

namespace {

// What a tracker is to say that says `latest` now; none where it stays.
std::optional<std::string> tracker_text(const std::string& folder_name,
                                        std::optional<int64_t> latest,
                                        const FolderConvention& convention) {
  if (folder_name == convention.unnumbered) return folder_name;
  const auto iteration = iteration_named(folder_name, convention);
  if (!iteration) {
    throw Error(ErrorCode::InvalidArgument, {folder_name}, "is not the folder of an iteration");
  }
  return latest && *latest > *iteration ? std::nullopt : std::optional(std::to_string(*iteration));
}

void set_latest_in_store(const fs::path& root, const std::string& folder_name,
                         const FolderConvention& convention) {
  constexpr int kAttempts = 10;
  const std::string key = key_of_tracker(root, convention);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto writer = writer_to(root);
    const auto found = writer->text_of(key);
    const auto text = tracker_text(folder_name, iteration_in(found, convention), convention);
    // False where another process has changed it meanwhile.
    if (!text || writer->replace(key, *text, found ? found->etag : "")) return;
  }
  throw Error(ErrorCode::IoFailure, {(root / convention.tracker).string()},
              "is changed again and again by others");
}

}  // namespace

void set_latest(const std::filesystem::path& root, const std::string& folder_name,
                const FolderConvention& convention) {
  if (is_in_store(root)) return set_latest_in_store(root, folder_name, convention);
  const Place held = Place::held(root);
  const auto text = tracker_text(folder_name, latest_in(held, convention), convention);
  if (text) replace_text(held, std::string(convention.tracker), *text);
}

bool clean_latest(const std::filesystem::path& root, const FolderConvention& convention) {
  if (is_in_store(root) || !is_there(root)) return false;  // a store replaces objects at once
  return remove_unfinished_text(Place::held(root), std::string(convention.tracker));
}

}  // namespace ckpt
