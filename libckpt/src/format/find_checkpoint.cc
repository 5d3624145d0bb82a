#include <algorithm>
#include <charconv>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "format/format.h"
#include "format/path_errors.h"
#include "format/safetensors/safetensors.h"
#include "format/torch/torch_save.h"
#include "format/torch_dist/dist_parts.h"
#include "io/directory.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kHeadBytes = 512;  // enough to tell formats apart

bool is_there(const fs::path& path) { return kind_behind(path) != EntryKind::Absent; }

std::optional<int64_t> as_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::optional<int64_t> iteration_of(const fs::path& folder, const FolderConvention& convention) {
  return iteration_named(folder.filename().string(), convention);
}

std::string tracked_folder(const fs::path& root, const OpenOptions& options) {
  const FolderConvention& convention = *options.convention;
  const std::string tracker(convention.tracker);
  const File file =
      Directory::open(root).open_file(tracker, tracker, links_if(options.limits.follow_links));
  const auto iteration = tracked_iteration(tracked_text(file), convention);
  return iteration ? iteration_folder(*iteration, convention) : std::string(convention.unnumbered);
}

bool is_root(const fs::path& folder, const FolderConvention* convention) {
  return convention != nullptr && is_there(folder / convention->tracker);
}

bool holds_rank_folders(const fs::path& folder, const FolderConvention* convention) {
  if (convention == nullptr) return false;
  const std::vector<std::string> names = Directory::open(folder).list();
  return std::ranges::any_of(names, [&](const std::string& name) {
    return name.starts_with(convention->rank_folder_prefix) &&
           kind_behind(folder / name) == EntryKind::Folder;
  });
}

// A folder of safetensors files: with an index, a single one, or parts of one checkpoint.
bool find_safetensors(const fs::path& folder, Location& location) {
  std::vector<std::string> files, indices;
  for (const std::string& name : Directory::open(folder).list()) {
    if (name.ends_with(kSafetensorsSuffix)) files.push_back(name);
    if (name.ends_with(kSafetensorsIndexSuffix)) indices.push_back(name);
  }
  location.format = Format::Safetensors;
  location.is_index = indices.size() == 1;
  if (location.is_index) {
    location.only_file = indices[0];
  } else if (files.size() == 1) {
    location.only_file = files[0];
  }
  return location.is_index || !files.empty();
}

std::optional<Location> find_in_folder(const fs::path& folder, const FolderConvention* convention) {
  Location location;
  location.folder = folder;
  location.convention = convention;
  if (convention != nullptr) location.iteration = iteration_of(resolved(folder), *convention);
  if (is_there(folder / ".metadata") || is_there(folder / rank_metadata_name(0))) {
    location.format = Format::TorchDist;
  } else if (holds_rank_folders(folder, convention)) {
    location.format = Format::Torch;
  } else if (!find_safetensors(folder, location)) {
    return std::nullopt;
  }
  return location;
}

// An iteration of a root, whose tracker named it or the user.
Location find_below(const fs::path& root, const std::string& name, const OpenOptions& options) {
  if (!options.limits.follow_links) Directory::open(root).check_inside(name);
  auto location = find_in_folder(root / name, options.convention);
  if (!location) refuse_folder(root / name, options.convention);
  location->was_root = true;
  return *location;
}

Location find_tracked(const fs::path& root, const OpenOptions& options) {
  const std::string name = tracked_folder(root, options);
  if (kind_behind(root / name) != EntryKind::Folder) {
    throw Error(ErrorCode::NotFound, {.file = (root / name).string(), .key = {}},
                "the folder that " + std::string(options.convention->tracker) + " names is missing",
                hint_of_iterations(root, *options.convention));
  }
  return find_below(root, name, options);
}

// In a root, or in that iteration's own folder.
Location find_iteration(const fs::path& path, const OpenOptions& options) {
  if (options.convention == nullptr) {
    throw Error(ErrorCode::InvalidArgument, {.file = path.string(), .key = {}},
                "iterations are found with a convention; expected OpenOptions::convention");
  }
  const int64_t iteration = *options.iteration;
  const std::string name = iteration_folder(iteration, *options.convention);
  if (kind_behind(path / name) == EntryKind::Folder) return find_below(path, name, options);
  auto location = find_in_folder(path, options.convention);
  if (location && location->iteration == iteration) return *location;
  refuse_iteration(path, iteration, *options.convention);
}

Location find_in_directory(const fs::path& path, const OpenOptions& options) {
  if (options.iteration) return find_iteration(path, options);
  if (is_root(path, options.convention)) return find_tracked(path, options);
  if (auto location = find_in_folder(path, options.convention)) return *location;
  refuse_folder(path, options.convention);
}

bool is_zip(std::string_view head) { return head.starts_with("PK\x03\x04"); }

// A u64 header length, then JSON.
bool is_safetensors(std::string_view head, uint64_t file_bytes) {
  if (head.size() < 9 || head[8] != '{') return false;
  ByteReader reader(std::as_bytes(std::span(head)));
  const uint64_t header_bytes = reader.u64();
  return header_bytes <= file_bytes - 8;
}

Location find_in_file(const fs::path& path, const FolderConvention* convention) {
  const std::string name = path.filename().string();
  const File file = File::open(path, name);
  std::string head(std::min<uint64_t>(file.size_bytes(), kHeadBytes), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  refuse_part(path, head, convention);
  Location location;
  location.convention = convention;
  location.folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  location.only_file = name;
  location.named_file = true;
  if (is_zip(head) || is_legacy_torch_save(head)) {
    location.format = Format::Torch;
  } else if (is_safetensors(head, file.size_bytes())) {
    location.format = Format::Safetensors;
  } else if (name.ends_with(".json") && head.find_first_not_of(" \t\r\n") == head.find('{')) {
    location.format = Format::Safetensors;
    location.is_index = true;
  } else {
    refuse_file(path, file);
  }
  return location;
}

}  // namespace

std::string iteration_folder(int64_t iteration, const FolderConvention& convention) {
  std::string digits = std::to_string(iteration);
  if (digits.size() < convention.iteration_digits) {
    digits.insert(0, convention.iteration_digits - digits.size(), '0');
  }
  return std::string(convention.iteration_prefix) + digits;
}

bool holds_checkpoint(const fs::path& folder, const FolderConvention* convention) {
  return is_root(folder, convention) || find_in_folder(folder, convention).has_value();
}

std::optional<int64_t> iteration_named(std::string_view folder_name,
                                       const FolderConvention& convention) {
  if (!folder_name.starts_with(convention.iteration_prefix)) return std::nullopt;
  return as_number(folder_name.substr(convention.iteration_prefix.size()));
}

Location find_checkpoint(const fs::path& path, const OpenOptions& options) {
  const EntryKind kind = kind_behind(path);
  if (kind == EntryKind::Absent) refuse_missing(path);
  if (kind == EntryKind::Folder) return find_in_directory(path, options);
  if (options.iteration) {
    throw Error(ErrorCode::InvalidArgument, {.file = path.string(), .key = {}},
                "is not a folder; --iteration chooses one iteration of a checkpoint root",
                "leave out --iteration");
  }
  if (kind == EntryKind::File) return find_in_file(path, options.convention);
  throw Error(ErrorCode::Unsupported, {.file = path.string(), .key = {}},
              "neither a file nor a folder");
}

std::vector<IterationFolder> list_iterations(const fs::path& root,
                                             const FolderConvention& convention,
                                             const Limits& limits) {
  if (kind_behind(root) == EntryKind::Absent) refuse_missing(root);
  std::vector<IterationFolder> folders;
  const Directory opened = Directory::open(root);
  for (const std::string& name : opened.list()) {
    const auto iteration = iteration_of(root / name, convention);
    const bool is_folder = iteration && kind_behind(root / name) == EntryKind::Folder;
    if (is_folder && (limits.follow_links || opened.leads_inside(name)))
      folders.push_back({*iteration, root / name});
  }
  std::ranges::sort(folders, std::ranges::greater(), &IterationFolder::iteration);
  return folders;
}

}  // namespace ckpt
