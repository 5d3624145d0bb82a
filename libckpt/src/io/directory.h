#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/folder.h>

#include "io/file.h"

namespace ckpt {

// True for a path that stays below the folder that it is taken from, whatever links are there:
// relative, not empty, no "..", no NUL.
bool is_safe_relative(std::string_view path);

inline Links links_if(bool may_lead_out) {
  return may_lead_out ? Links::MayLeadOut : Links::StayInside;
}

// An opened folder. Files are opened below it: a name that leads out of it is refused (Corrupt),
// and so is a link, unless it may.
class Directory {
 public:
  static Directory open(const Place& place);  // throws NotFound, IoFailure

  // `shown` is what errors call it; default: `relative`.
  File open_file(const std::string& relative, std::string shown = {},
                 Links links = Links::StayInside) const;
  void check_inside(const std::string& relative) const;  // throws as open_file()
  // Names of the entries, without "." and "..", sorted by byte value.
  std::vector<std::string> list() const;
  void sync() const;  // what was made, renamed and removed in it outlives a loss of power

 private:
  Directory(FileDescriptor descriptor, std::filesystem::path path);
  FileDescriptor open_below(const std::string& relative, const std::string& shown, int flags,
                            Links links) const;

  FileDescriptor descriptor_;
  std::filesystem::path path_;
};

// What is at a place. Functions below throw Error as throw_errno() does, and as NameAt.
Folder::Entry entry_at(const Place& place);                     // a link is a link
Folder::Entry entry_behind(const std::filesystem::path& path);  // never Link
EntryKind kind_of_entry(const Place& place);                    // a link is a link
inline bool is_there(const Place& place) { return kind_of_entry(place) != EntryKind::Absent; }

bool are_same(const std::filesystem::path& a,
              const std::filesystem::path& b);  // one file or folder

// Bytes that a process without privileges can still write where `path` is; nullopt where the file
// system does not say.
std::optional<uint64_t> free_bytes(const std::filesystem::path& path);

// Absolute, without links and "..".
std::filesystem::path resolved(const std::filesystem::path& path);

bool make_folder(const Place& place);  // false if it was there
// And those between it and `folder`.
void make_folders(const Place& folder, const std::filesystem::path& below);

// Whether another file system, or another folder, is mounted there. False where the system cannot
// tell (before Linux 5.6).
bool is_mount(const Place& place);

// Removes what is there, if anything is, with everything below it. Links are not followed.
void remove_tree(const Place& place);
void remove_file(const Place& place);  // or link; whether it is there or not
// Leaves a folder that something is in.
void remove_folder_if_empty(const Place& place);

// Everything below a folder, which comes first itself; folders before what they hold. Links are not
// followed.
struct FolderTree {
  std::vector<Place> folders, files;
};
FolderTree walk(const Place& folder);
void remove(const FolderTree& tree);

// Write to the device: a file, or a folder with everything below it. Links are not followed.
void sync_file(const Place& place);
void sync_tree(const Place& place);

std::optional<FileState> state_of_entry(const Place& place);  // a link is a link

}  // namespace ckpt
