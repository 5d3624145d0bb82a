#include "support/power_loss.h"

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

PowerLoss::Name PowerLoss::name_of(const char* path) const {
  const fs::path relative = fs::path(path).lexically_relative(root_);
  if (relative.empty() || *relative.begin() == "..") return {};
  if (relative == ".") return {kRoot, "."};
  Name name{kRoot, ""};
  for (const fs::path& part : relative) {
    if (!name.name.empty()) name.folder = inode_of(name);
    name.name = part.string();
  }
  return name;
}

PowerLoss::Inode PowerLoss::inode_of(const Name& name) const {
  if (name.name == ".") return name.folder;
  const auto folder = nodes_.find(name.folder);
  if (folder == nodes_.end()) return kNone;
  const auto found = folder->second.names.find(name.name);
  return found == folder->second.names.end() ? kNone : found->second;
}

void PowerLoss::note(Change change) {
  apply(change, nodes_);
  changes_.push_back(std::move(change));
}

void PowerLoss::set_names(std::vector<std::pair<Name, Inode>> names) {
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
    SystemCalls().lstat(paths.at(noted->second).c_str(), status);
    write_file(path, std::to_string(status.st_ino));
  }
}

int PowerLoss::open(const char* path, int flags, mode_t mode) {
  const Name name = name_of(path);
  const bool is_new = name.folder != kNone && inode_of(name) == kNone;
  const int file = SystemCalls::open(path, flags, mode);
  if (file < 0 || name.folder == kNone) return file;
  if (is_new) {
    set_names({{name, add_node(false)}});
    remember(path);
  }
  open_[file] = inode_of(name);
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

int PowerLoss::mkdir(const char* path, mode_t mode) {
  const int result = SystemCalls::mkdir(path, mode);
  const Name name = name_of(path);
  if (result != 0 || name.folder == kNone) return result;
  set_names({{name, add_node(true)}});
  remember(path);
  return result;
}

void PowerLoss::remember(const char* path) {
  struct stat status = {};
  SystemCalls::lstat(path, status);
  known_as_[std::to_string(status.st_ino)] = inode_of(name_of(path));
}

int PowerLoss::rmdir(const char* path) {
  const int result = SystemCalls::rmdir(path);
  if (result == 0) set_names({{name_of(path), kNone}});
  return result;
}

int PowerLoss::unlink(const char* path) {
  const int result = SystemCalls::unlink(path);
  if (result == 0) set_names({{name_of(path), kNone}});
  return result;
}

int PowerLoss::link(const char* source, const char* target) {
  const int result = SystemCalls::link(source, target);
  if (result == 0) set_names({{name_of(target), inode_of(name_of(source))}});
  return result;
}

void PowerLoss::note_rename(const char* source, const char* target, bool exchanges) {
  const Name from = name_of(source), to = name_of(target);
  const Inode moved = inode_of(from), other = inode_of(to);
  set_names({{from, exchanges ? other : kNone}, {to, moved}});
}

int PowerLoss::rename(const char* source, const char* target) {
  const int result = SystemCalls::rename(source, target);
  if (result == 0) note_rename(source, target, false);
  return result;
}

int PowerLoss::renameat2(const char* source, const char* target, unsigned flags) {
  if (!has_exchange && (flags & RENAME_EXCHANGE) != 0) {
    errno = EINVAL;
    return -1;
  }
  const int result = SystemCalls::renameat2(source, target, flags);
  if (result == 0) note_rename(source, target, (flags & RENAME_EXCHANGE) != 0);
  return result;
}

}  // namespace test
