#include "staging/staging_place.h"

#include <ckpt/error.h>

#include <algorithm>

#include "base/text.h"
#include "codec/crc32.h"
#include "io/directory.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

constexpr size_t kNameBytesMax = 200;  // of 255, so that there is room for what we add

fs::path checked_destination(const fs::path& destination) {
  fs::path absolute = fs::absolute(destination);
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // "DST/"
  if (!absolute.has_filename() || absolute.filename() == "." || absolute.filename() == "..") {
    throw Error(ErrorCode::InvalidArgument, {destination.string()}, "is not a valid destination");
  }
  return absolute;
}

// NAME, or the start of a long one with a checksum of all of it.
std::string short_name(const std::string& name) {
  if (name.size() <= kNameBytesMax) return name;
  return name.substr(0, kNameBytesMax) + "-" + hex(crc32(std::as_bytes(std::span(name))));
}

// Without links, also where the last name is not there.
fs::path resolved_place(const fs::path& path) {
  if (entry_behind(path).kind != EntryKind::Absent) return resolved(path);
  return resolved(path.parent_path()) / path.filename();
}

bool is_in(const fs::path& inner, const fs::path& outer) {
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

}  // namespace

StagingPlace::StagingPlace(const fs::path& given)
    : shown(given.string()), destination(checked_destination(given)) {
  const std::string name = short_name(destination.filename().string());
  holder = destination.parent_path() / ("." + name + ".shardwise-partial");
  lock = holder / "lock";
  job = holder / "job";
  content = holder / "content";
  publishing = holder / "publishing";
  replaced = holder / "replaced";
}

fs::path StagingPlace::part_lock(uint32_t rank) const {
  return holder / ("part-" + std::to_string(rank) + ".lock");
}

void StagingPlace::refuse_overlap(const fs::path& source) const {
  if (source.empty()) return;
  const fs::path to = resolved_place(destination);
  const fs::path from = resolved(source);
  if (are_same(destination, source)) {
    throw Error(ErrorCode::InvalidArgument, {shown}, "the destination is the source");
  }
  if (is_in(to, from)) {
    throw Error(ErrorCode::InvalidArgument, {shown}, "the destination lies inside the source");
  }
  if (is_in(from, to)) {
    throw Error(ErrorCode::InvalidArgument, {shown}, "the destination contains the source");
  }
}

void StagingPlace::refuse_files(const std::vector<fs::path>& files) const {
  if (entry_behind(destination).kind == EntryKind::Absent) return;
  const fs::path to = resolved(destination);
  for (const fs::path& file : files) {
    if (!is_in(resolved(file), to) && !are_same(destination, file)) continue;
    throw Error(ErrorCode::InvalidArgument, {shown},
                "the destination is or contains a file of the source: " + escaped(file.string()));
  }
}

std::optional<LockFile> StagingPlace::try_lock() const {
  try {
    return LockFile::try_lock(lock);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::NotFound) return std::nullopt;
    throw;
  }
}

std::vector<LockFile> StagingPlace::try_lock_all() const {
  auto leader = try_lock();
  if (!leader) return {};
  std::vector<LockFile> locks;
  locks.push_back(std::move(*leader));
  for (const std::string& name : Directory::open(holder).list()) {
    if (!name.starts_with("part-") || !name.ends_with(".lock")) continue;
    auto part = LockFile::try_lock(holder / name);
    if (!part) return {};
    locks.push_back(std::move(*part));
  }
  return locks;
}

void StagingPlace::recover() const {
  if (const auto inode = text_of(publishing)) {
    const auto now = state_of_entry(destination);
    if (now && std::to_string(now->inode) == *inode) return remove_work();  // it was published
  }
  if (is_there(replaced)) {
    if (is_there(destination)) {
      throw Error(ErrorCode::AlreadyExists, {replaced.string()},
                  "is the old destination, set aside by an interrupted run that was replacing it",
                  "move or remove it");
    }
    rename_to_free_name(replaced, destination);
    Directory::open(destination.parent_path()).sync();
  }
  remove_tree(publishing);
  if (!is_there(content)) remove_work();  // it was published, or had not begun
}

void StagingPlace::remove_work() const {
  remove_tree(content);
  remove_tree(replaced);
  for (const std::string& name : Directory::open(holder).list()) {
    if (holder / name != lock && holder / name != publishing) remove_tree(holder / name);
  }
  if (!is_there(publishing)) return;
  Directory::open(holder).sync();  // nothing is to come back without the note of what it is
  remove_tree(publishing);
}

void StagingPlace::remove_if_empty() const {
  if (!is_there(holder)) return;
  const auto names = Directory::open(holder).list();
  const bool is_empty = std::ranges::all_of(names, [](const auto& name) { return name == "lock"; });
  if (!is_empty) return;
  remove_tree(lock);
  remove_folder_if_empty(holder);  // a process that has come meanwhile removes it in its turn
}

void StagingPlace::tidy() const {
  const std::vector<LockFile> locks = try_lock_all();
  if (locks.empty()) return;
  recover();
  remove_if_empty();
  // Where the system has no locks, nobody else could remove it.
  if (!locks.front().is_of_the_system()) remove_tree(lock);
}

}  // namespace ckpt
