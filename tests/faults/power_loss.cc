#include "support/power_loss.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "support/temporary_folder.h"

namespace test {

namespace fs = std::filesystem;

PowerLoss::PowerLoss(fs::path root) : root_(std::move(root)) {
  nodes_[kRoot].is_folder = true;
  load(kRoot, root_);
  before_ = nodes_;
}

void PowerLoss::load(Inode folder, const fs::path& path) {
  for (const auto& entry : fs::directory_iterator(path)) {
    const Inode inode = add_node(entry.is_directory());
    nodes_[folder].names[entry.path().filename().string()] = inode;
    if (entry.is_directory()) {
      load(inode, entry.path());
    } else {
      nodes_[inode].bytes = read_file(entry.path());
    }
  }
}

PowerLoss::Inode PowerLoss::add_node(bool is_folder) {
  nodes_[++last_inode_].is_folder = is_folder;
  return last_inode_;
}

PowerLoss::Entry PowerLoss::entry_of(int folder, const char* path) const {
  fs::path relative = path;
  Entry entry{kRoot, ""};
  if (folder == AT_FDCWD) {
    relative = relative.lexically_relative(root_);
    if (relative.empty() || *relative.begin() == "..") return {};
  } else {
    const auto opened = open_.find(folder);
    if (opened == open_.end()) return {};
    entry.folder = opened->second;
  }
  if (relative == ".") return {entry.folder, "."};
  for (const fs::path& part : relative) {
    if (!entry.name.empty()) entry.folder = inode_of(entry);
    entry.name = part.string();
  }
  return entry;
}

PowerLoss::Inode PowerLoss::inode_of(const Entry& entry) const {
  if (entry.name == ".") return entry.folder;
  const auto folder = nodes_.find(entry.folder);
  if (folder == nodes_.end()) return kNone;
  const auto found = folder->second.names.find(entry.name);
  return found == folder->second.names.end() ? kNone : found->second;
}

void PowerLoss::note(Change change) {
  apply(change, nodes_);
  changes_.push_back(std::move(change));
}

void PowerLoss::set_names(std::vector<std::pair<Entry, Inode>> names) {
  std::erase_if(names, [](const auto& entry) { return entry.first.folder == kNone; });
  if (!names.empty()) note({.kind = Change::Kind::SetNames, .names = std::move(names)});
}

void PowerLoss::apply(const Change& change, Nodes& nodes) {
  switch (change.kind) {
    case Change::Kind::SetNames:
      for (const auto& [name, inode] : change.names) {
        nodes[name.folder].names[name.name] = inode;
        if (inode == kNone) nodes[name.folder].names.erase(name.name);
      }
      break;
    case Change::Kind::Write: {
      std::string& bytes = nodes[change.inode].bytes;
      bytes.resize(std::max<size_t>(bytes.size(), change.offset_bytes + change.bytes.size()));
      bytes.replace(change.offset_bytes, change.bytes.size(), change.bytes);
      break;
    }
    case Change::Kind::Resize: nodes[change.inode].bytes.resize(change.offset_bytes); break;
    case Change::Kind::Sync: break;
  }
}

// Certain once what it changed was synced. A rename between two folders is one change: it is there
// once either of them is synced.
bool PowerLoss::is_certain(uint64_t number, uint64_t moment) const {
  const Change& change = changes_[number];
  for (uint64_t later = number + 1; later < moment; ++later) {
    if (changes_[later].kind != Change::Kind::Sync) continue;
    const Inode synced = changes_[later].inode;
    if (change.kind != Change::Kind::SetNames && change.inode == synced) return true;
    const auto is_in = [&](const auto& entry) { return entry.first.folder == synced; };
    if (std::ranges::any_of(change.names, is_in)) return true;
  }
  return false;
}

void PowerLoss::write_image(uint64_t moment, const Survives& survives,
                            const fs::path& image) const {
  Nodes nodes = before_;
  for (const auto& [inode, node] : nodes_) nodes[inode].is_folder = node.is_folder;
  for (uint64_t number = 0; number < moment; ++number) {
    if (is_certain(number, moment) || survives(number)) apply(changes_[number], nodes);
  }
  Paths paths{{kRoot, image}};
  write_folder(nodes, kRoot, paths);
  translate_inodes(paths);
}

void PowerLoss::write_folder(const Nodes& nodes, Inode folder, Paths& paths) {
  const fs::path path = paths.at(folder);
  fs::create_directories(path);
  for (const auto& [name, inode] : nodes.at(folder).names) {
    const Node& node = nodes.at(inode);
    paths[inode] = path / name;
    if (node.is_folder) {
      write_folder(nodes, inode, paths);
    } else {
      write_file(path / name, node.bytes);
    }
  }
}

// Inodes outlive a loss of power; an image has others, so that notes of them must be of those.
void PowerLoss::translate_inodes(const Paths& paths) const {
  for (const auto& [file, path] : paths) {
    if (path.filename() != "publishing") continue;
    const auto noted = known_as_.find(read_file(path));
    if (noted == known_as_.end() || !paths.contains(noted->second)) continue;
    struct stat status = {};
    SystemCalls().fstatat(AT_FDCWD, paths.at(noted->second).c_str(), status, AT_SYMLINK_NOFOLLOW);
    write_file(path, std::to_string(status.st_ino));
  }
}

int PowerLoss::openat(int folder, const char* path, int flags, mode_t mode) {
  const Entry entry = entry_of(folder, path);
  const bool is_new = entry.folder != kNone && inode_of(entry) == kNone;
  const int file = SystemCalls::openat(folder, path, flags, mode);
  if (file < 0 || entry.folder == kNone) return file;
  if (is_new) {
    set_names({{entry, add_node(false)}});
    remember(folder, path);
  }
  open_[file] = inode_of(entry);
  return file;
}

int PowerLoss::close(int file) {
  open_.erase(file);
  return SystemCalls::close(file);
}

ssize_t PowerLoss::pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes) {
  const ssize_t count = SystemCalls::pwrite(file, bytes, count_bytes, offset_bytes);
  if (count > 0 && open_.contains(file)) {
    note({.kind = Change::Kind::Write,
          .inode = open_[file],
          .offset_bytes = static_cast<uint64_t>(offset_bytes),
          .bytes = std::string(static_cast<const char*>(bytes), static_cast<size_t>(count))});
  }
  return count;
}

int PowerLoss::fallocate(int file, int mode, off_t offset_bytes, off_t count_bytes) {
  const int result = SystemCalls::fallocate(file, mode, offset_bytes, count_bytes);
  if (result == 0 && open_.contains(file)) {
    note({.kind = Change::Kind::Resize,
          .inode = open_[file],
          .offset_bytes = static_cast<uint64_t>(offset_bytes + count_bytes)});
  }
  return result;
}

int PowerLoss::ftruncate(int file, off_t count_bytes) {
  const int result = SystemCalls::ftruncate(file, count_bytes);
  if (result == 0 && open_.contains(file)) {
    note({.kind = Change::Kind::Resize,
          .inode = open_[file],
          .offset_bytes = static_cast<uint64_t>(count_bytes)});
  }
  return result;
}

// Not the real one: nothing of the test itself has to outlive anything.
int PowerLoss::fsync(int file) {
  if (open_.contains(file)) note({.kind = Change::Kind::Sync, .inode = open_[file]});
  return 0;
}

int PowerLoss::mkdirat(int folder, const char* path, mode_t mode) {
  const int result = SystemCalls::mkdirat(folder, path, mode);
  const Entry entry = entry_of(folder, path);
  if (result != 0 || entry.folder == kNone) return result;
  set_names({{entry, add_node(true)}});
  remember(folder, path);
  return result;
}

void PowerLoss::remember(int folder, const char* path) {
  struct stat status = {};
  SystemCalls::fstatat(folder, path, status, AT_SYMLINK_NOFOLLOW);
  known_as_[std::to_string(status.st_ino)] = inode_of(entry_of(folder, path));
}

int PowerLoss::unlinkat(int folder, const char* path, int flags) {
  const int result = SystemCalls::unlinkat(folder, path, flags);
  if (result == 0) set_names({{entry_of(folder, path), kNone}});
  return result;
}

int PowerLoss::linkat(Name source, Name target) {
  const int result = SystemCalls::linkat(source, target);
  if (result != 0) return result;
  const Inode linked = inode_of(entry_of(source.folder, source.path));
  set_names({{entry_of(target.folder, target.path), linked}});
  return result;
}

int PowerLoss::renameat2(SystemCalls::Name source, SystemCalls::Name target, unsigned flags) {
  const bool exchanges = (flags & RENAME_EXCHANGE) != 0;
  if (!has_exchange && exchanges) {
    errno = EINVAL;
    return -1;
  }
  const int result = SystemCalls::renameat2(source, target, flags);
  if (result != 0) return result;
  const Entry from = entry_of(source.folder, source.path);
  const Entry to = entry_of(target.folder, target.path);
  const Inode moved = inode_of(from), other = inode_of(to);
  set_names({{from, exchanges ? other : kNone}, {to, moved}});
  return result;
}

}  // namespace test
