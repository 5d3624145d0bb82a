#include "staging/staging_holder.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <ckpt/error.h>
#include <ckpt/root.h>

#include "base/text.h"
#include "codec/crc32.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRemoved = ".shardwise-removed", kPrepared = ".shardwise-trimmed";

FolderTree walk_without_mounts(const Place& folder) {
  if (kind_of_entry(folder) != EntryKind::Folder) {
    throw Error(ErrorCode::Unsupported, {folder.path().string()},
                "is a link or a file, not a folder of this root");
  }
  FolderTree tree = walk(folder);
  for (const auto* const places : {&tree.folders, &tree.files}) {
    for (const Place& place : *places) {
      if (!is_mount(place)) continue;
      throw Error(ErrorCode::Unsupported, {place.path().string()},
                  "is a mount, so that what is in it is not removed",
                  "unmount it, or move it away");
    }
  }
  return tree;
}

constexpr size_t kNameBytesMax = 200;  // of 255, so that there is room for what we add

fs::path checked_destination(const fs::path& destination) {
  fs::path absolute = fs::absolute(destination);
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // "DST/"
  if (!absolute.has_filename() || absolute.filename() == "." || absolute.filename() == "..") {
    throw Error(ErrorCode::InvalidArgument, {destination.string()}, "is not a valid destination");
  }
  return absolute;
}

bool is_in(const fs::path& inner, const fs::path& outer) {
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

constexpr int kAttempts = 100;  // others may remove the folder that was just made
constexpr const char* kJob = "job";

enum class Entry : uint8_t { Lock, Text, Content, Replaced, Foreign, Unnamed };

// "part-12" without "part-".
bool is_numbered(std::string_view name, std::string_view start) {
  if (!name.starts_with(start) || name.size() == start.size()) return false;
  return name.find_first_not_of("0123456789", start.size()) == name.npos;
}

std::string_view without_end(std::string_view name, std::string_view end) {
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : std::string_view();
}

bool is_job_or_note(std::string_view name) {
  return name == kJob || name == "publishing" || name == "leader" || is_numbered(name, "job-") ||
         is_numbered(name, "leader-");
}

// What a network file system keeps of a file that is open while its name is removed, until it is
// closed: neither ours nor anybody's.
bool is_of_the_system(std::string_view name) {
  return name.starts_with(".nfs") || name.starts_with(".fuse_hidden");
}

Entry entry_named(std::string_view name) {
  if (is_of_the_system(name)) return Entry::Unnamed;
  if (name == "lock" || is_numbered(without_end(name, ".lock"), "part-")) return Entry::Lock;
  if (name == "content") return Entry::Content;
  if (name == "replaced") return Entry::Replaced;
  const bool is_part =
      is_numbered(name, "part-") || is_numbered(without_end(name, ".new"), "part-");
  const bool is_new = name.starts_with('.') && is_job_or_note(without_end(name.substr(1), ".new"));
  return is_part || is_new || is_job_or_note(name) ? Entry::Text : Entry::Foreign;
}

}  // namespace

FolderTree tree_of_ours(const Place& content, const std::vector<std::string>& files) {
  FolderTree tree{{}, {content}};
  if (kind_of_entry(content) == EntryKind::Folder) tree = walk(content);
  if (files.empty()) return tree;
  std::set<fs::path> ours;
  for (const std::string& file : files) {
    fs::path path = file.empty() ? content.path() : content.path() / file;
    while (ours.insert(path).second && path != content.path()) path = path.parent_path();
  }
  const auto check = [&](const Place& place, EntryKind wanted) {
    const EntryKind kind = kind_of_entry(place);
    if (kind == EntryKind::Absent || (kind == wanted && ours.contains(place.path()))) return;
    refuse_foreign(place.path(), "is not one of the files that this output is made of");
  };
  for (const Place& folder : tree.folders) check(folder, EntryKind::Folder);
  for (const Place& file : tree.files) check(file, EntryKind::File);
  return tree;
}

StagingPlace::StagingPlace(const fs::path& given)
    : shown_(given.string()), path_(checked_destination(given)) {
  std::string name = path_.filename().string();
  if (name.size() > kNameBytesMax) {  // its start, with a checksum of all of it
    name = name.substr(0, kNameBytesMax) + "-" + hex(crc32(std::as_bytes(std::span(name))));
  }
  holder_path_ = path_.parent_path() / ("." + name + ".shardwise-partial");
}

const Place& StagingPlace::parent() const {
  if (!parent_) parent_ = Place::held(path_.parent_path());
  return *parent_;
}

void StagingPlace::refuse_overlap(const fs::path& source) const {
  if (source.empty() || !scheme_of(source.native()).empty()) return;  // is not on this machine
  const bool exists = entry_behind(path_).kind != EntryKind::Absent;
  const fs::path to = exists ? resolved(path_) : resolved(path_.parent_path()) / path_.filename();
  const fs::path from = resolved(source);
  if (are_same(path_, source)) {
    throw Error(ErrorCode::InvalidArgument, {shown_}, "the destination is the source");
  }
  if (is_in(to, from)) {
    throw Error(ErrorCode::InvalidArgument, {shown_}, "the destination lies inside the source");
  }
  if (is_in(from, to)) {
    throw Error(ErrorCode::InvalidArgument, {shown_}, "the destination contains the source");
  }
}

void StagingPlace::refuse_files(const std::vector<fs::path>& files) const {
  if (entry_behind(path_).kind == EntryKind::Absent) return;
  const fs::path to = resolved(path_);
  for (const fs::path& file : files) {
    if (!is_in(resolved(file), to) && !are_same(path_, file)) continue;
    throw Error(ErrorCode::InvalidArgument, {shown_},
                "the destination is or contains a file of the source: " + escaped(file.string()));
  }
}

StagingHolder::StagingHolder(const StagingPlace& place, Place held)
    : parent(place.parent()),
      destination(place.destination()),
      folder(held),
      lock(held / "lock"),
      content(held / "content"),
      publishing(held / "publishing"),
      replaced(held / "replaced"),
      name_(place.holder()) {}

std::optional<StagingHolder> StagingHolder::open(const StagingPlace& place) {
  return unless_gone<StagingHolder>([&]() -> std::optional<StagingHolder> {
    const EntryKind kind = kind_of_entry(place.holder());
    if (kind == EntryKind::Absent) return std::nullopt;
    if (kind != EntryKind::Folder) {
      refuse_foreign(place.holder_path(), kind == EntryKind::Link
                                              ? "is a symbolic link in place of the staging folder"
                                              : "is not a folder, in place of the staging folder");
    }
    StagingHolder holder(place, Place::held(place.holder()));
    holder.refuse_foreign_entries();
    return holder;
  });
}

std::pair<StagingHolder, bool> StagingHolder::make(const StagingPlace& place) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const bool is_new = make_folder(place.holder());
    try {
      if (auto opened = open(place)) return {std::move(*opened), is_new};
    } catch (...) {
      if (is_new) remove_folder_if_empty(place.holder());
      throw;
    }
  }
  throw Error(ErrorCode::IoFailure, {place.holder_path().string()},
              "is removed again and again while it is made");
}

void StagingHolder::tidy(const StagingPlace& place) {
  const auto holder = open(place);
  if (!holder) return;
  std::vector<LockFile> locks = holder->try_lock_all();
  if (locks.empty()) return;
  const bool has_locks = locks.front().is_of_the_system();
  holder->recover();
  LockFile leader = std::move(locks.front());
  holder->leave(std::move(leader), std::move(locks));
  // Where the system has no locks, nobody else could remove it.
  if (!has_locks) remove_file(holder->lock);
}

std::string StagingHolder::left_job(const StagingPlace& place) {
  const auto holder = open(place);
  const auto record = holder ? holder->record() : std::nullopt;
  return record ? record->job : "";
}

Place StagingHolder::part_lock(uint32_t rank) const {
  return folder / ("part-" + std::to_string(rank) + ".lock");
}

std::optional<StagingRecord> StagingHolder::record() const {
  const auto text = text_of(folder / kJob);
  return text ? StagingRecord::parse(*text) : std::nullopt;
}

std::optional<LockFile> StagingHolder::try_lock() const {
  return unless_gone<LockFile>([&] { return LockFile::try_lock(lock); });
}

std::vector<LockFile> StagingHolder::try_lock_all() const {
  auto leader = try_lock();
  if (!leader) return {};
  std::vector<LockFile> locks;
  locks.push_back(std::move(*leader));
  for (const std::string& name : Directory::open(folder).list()) {
    if (name == "lock" || entry_named(name) != Entry::Lock) continue;
    auto part = LockFile::try_lock(folder / name);
    if (!part) return {};
    locks.push_back(std::move(*part));
  }
  return locks;
}

bool StagingHolder::is_published() const {
  const auto inode = text_of(publishing);
  const auto now = inode ? state_of_entry(destination) : std::nullopt;
  return now && std::to_string(now->inode) == *inode;
}

// Empty: it is ours.
std::string StagingHolder::foreign_reason(const std::string& name) const {
  const EntryKind kind = kind_of_entry(folder / name);
  const bool is_output = kind == EntryKind::File || kind == EntryKind::Folder;
  switch (entry_named(name)) {
    case Entry::Lock: {
      const auto state = state_of_entry(folder / name);
      return kind == EntryKind::File && state && state->count_bytes == 0
                 ? ""
                 : "is not an empty file, as locks of this program are";
    }
    case Entry::Text:
      return is_text_of_ours(folder / name) ? "" : "is not a record of this program";
    case Entry::Content:
      // What a destination was may be anything.
      if (!is_output && !is_published()) return "is neither a file nor a folder";
      return record() ? "" : "lies in a folder without the record of a job";
    case Entry::Replaced:
      return is_there(publishing) && record() ? "" : "lies in a folder without a note about it";
    case Entry::Unnamed: return "";
    case Entry::Foreign: break;
  }
  return "lies in a staging folder";
}

void StagingHolder::refuse_foreign_entries() const {
  std::vector<std::string> names = Directory::open(folder).list();
  // Records first: the rest is judged by them.
  std::ranges::stable_partition(
      names, [](const auto& name) { return name != "content" && name != "replaced"; });
  const bool has_record = std::ranges::find(names, kJob) != names.end();
  for (const std::string& name : names) {
    const std::string reason = foreign_reason(name);
    // Another process may have removed it meanwhile, and then the record of it; or have made that
    // just now, on another machine, so that it is listed and not seen yet.
    if (reason.empty() || !is_there(folder / name)) continue;
    if (has_record && !is_there(folder / kJob)) continue;
    refuse_foreign((folder / name).path(), reason);
  }
}

void StagingHolder::recover() const {
  refuse_foreign_entries();
  if (is_published()) return remove_work();
  if (is_there(replaced)) {
    if (is_there(destination)) {
      throw Error(ErrorCode::AlreadyExists, {replaced.path().string()},
                  "is the old destination, set aside by an interrupted run that was replacing it",
                  "move or remove it");
    }
    rename_to_free_name(replaced, destination);
    Directory::open(parent).sync();
  }
  remove_file(publishing);
  if (!is_there(content)) remove_work();  // it was published, or had not begun
}

void StagingHolder::remove_content() const {
  const EntryKind kind = kind_of_entry(content);
  if (kind == EntryKind::Absent) return;
  if (is_published()) return remove_tree(content);  // what the destination was
  const auto left = record();
  if (!left) refuse_foreign(content.path(), "lies in a folder without the record of a job");
  remove(tree_of_ours(content, left->files));
}

void StagingHolder::remove_work() const {
  refuse_foreign_entries();
  remove_content();
  if (is_there(replaced)) {
    if (!is_published()) refuse_foreign(replaced.path(), "is what the destination was");
    remove_tree(replaced);
  }
  for (const std::string& name : Directory::open(folder).list()) {
    const Entry entry = entry_named(name);
    const bool is_ours = entry == Entry::Text || entry == Entry::Lock;
    if (is_ours && name != "lock" && name != kJob && name != "publishing") {
      remove_file(folder / name);
    }
  }
  // Nothing is to come back without the note of what it is.
  for (const Place& note : {folder / kJob, publishing}) {
    if (!is_there(note)) continue;
    Directory::open(folder).sync();
    remove_file(note);
  }
}

void StagingHolder::leave(LockFile held, std::vector<LockFile> others) const {
  const auto names = Directory::open(folder).list();
  const bool is_empty = std::ranges::all_of(
      names, [](const auto& name) { return name == "lock" || is_of_the_system(name); });
  if (!is_empty) return;
  remove_file(lock);
  remove_unlocked();  // a process that has come meanwhile does that in its turn
  { const LockFile closed = std::move(held); }
  others.clear();
  remove_unlocked();  // where the system has kept the lock as long as it was open
}

void StagingHolder::remove_unlocked() const {
  const auto mine = state_of_entry(folder), named = state_of_entry(name_);
  if (!mine || !named || mine->inode != named->inode) return;
  remove_folder_if_empty(name_);
}

std::string name_while_prepared(const std::string& name) {
  return "." + name + std::string(kPrepared);
}

uint64_t bytes_in_folder(const fs::path& root, const std::string& name) {
  uint64_t count = 0;
  for (const Place& file : walk_without_mounts(Place::held(root) / name).files) {
    if (const auto state = state_of_entry(file)) count += state->count_bytes;
  }
  return count;
}

void remove_folder(const fs::path& root, const std::string& name) {
  const Place held = Place::held(root);
  const Place removed = held / ("." + name + std::string(kRemoved));
  walk_without_mounts(held / name);
  remove_tree(removed);
  rename_to_free_name(held / name, removed);
  Directory::open(held).sync();
  remove(walk_without_mounts(removed));
}

void replace_by_prepared(const fs::path& root, const std::string& name) {
  const Place held = Place::held(root);
  const Place prepared = held / name_while_prepared(name);
  walk_without_mounts(held / name);
  if (!exchange_names(prepared, held / name)) {
    throw Error(ErrorCode::Unsupported, {(root / name).string()},
                "cannot be replaced in one step on this file system");
  }
  Directory::open(held).sync();
  remove(walk_without_mounts(prepared));
}

std::vector<std::string> clean_removed(const fs::path& root) {
  const Place held = Place::held(root);
  std::vector<std::string> cleaned;
  for (const std::string& name : Directory::open(held).list()) {
    const bool is_ours =
        name.starts_with('.') && (name.ends_with(kRemoved) || name.ends_with(kPrepared));
    if (!is_ours || kind_of_entry(held / name) != EntryKind::Folder) continue;
    remove(walk_without_mounts(held / name));
    cleaned.push_back(name);
  }
  return cleaned;
}

}  // namespace ckpt
