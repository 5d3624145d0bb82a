// A folder in memory as the source of checkpoints, with no file of it on a disk.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <ckpt/folder.h>

#include "support/golden.h"
#include "support/memory_payloads.h"

namespace test {

class MemoryFolder final : public ckpt::Folder {
 public:
  // Everything below a folder of the disk, or one file.
  static MemoryFolder copy_of(const std::filesystem::path& path) {
    namespace fs = std::filesystem;
    MemoryFolder folder;
    if (fs::is_regular_file(path)) folder.files_[path.filename().string()] = read_file(path);
    if (!fs::is_directory(path)) return folder;
    const std::string top = path.filename().string();
    folder.folders_.insert(top);
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string name = top + "/" + entry.path().lexically_relative(path).string();
      if (entry.is_directory()) {
        folder.folders_.insert(name);
      } else {
        folder.files_[name] = read_file(entry.path());
      }
    }
    return folder;
  }

  std::vector<std::string> list(const std::filesystem::path& folder) const override {
    const std::string prefix = name_of(folder).empty() ? "" : name_of(folder) + "/";
    std::set<std::string> names;
    const auto add = [&](const std::string& name) {
      if (!name.starts_with(prefix) || name.size() == prefix.size()) return;
      const std::string below = name.substr(prefix.size());
      names.insert(below.substr(0, below.find('/')));
    };
    for (const auto& [name, content] : files_) add(name);
    for (const std::string& name : folders_) add(name);
    return {names.begin(), names.end()};
  }

  Entry stat(const std::filesystem::path& path) const override {
    const std::string name = name_of(path);
    const auto file = files_.find(name);
    if (file != files_.end()) return {ckpt::EntryKind::File, state_of(file->second)};
    const bool is_folder = name.empty() || folders_.contains(name);
    return {is_folder ? ckpt::EntryKind::Folder : ckpt::EntryKind::Absent, {}};
  }

  std::unique_ptr<ckpt::OpenedFile> open(const std::filesystem::path& folder,
                                         const Name& name) const override {
    const std::string& shown = name.shown.empty() ? name.path : name.shown;
    const auto file = files_.find(name_of(folder / name.path));
    if (file == files_.end()) {
      throw ckpt::Error(ckpt::ErrorCode::NotFound, {shown}, "is not in this memory");
    }
    return std::make_unique<Opened>(file->second, shown);
  }

  void check_inside(const std::filesystem::path&, const std::string&) const override {}

  std::string& content(const std::string& name) { return files_.at(name); }
  void put(const std::string& name, std::string content) { files_[name] = std::move(content); }
  void erase(const std::string& name) { files_.erase(name); }

 private:
  class Opened final : public ckpt::OpenedFile {
   public:
    Opened(const std::string& content, const std::string& shown)
        : bytes_(content, shown), state_(state_of(content)) {}
    uint64_t size_bytes() const override { return bytes_.size_bytes(); }
    void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
      bytes_.read_at(offset_bytes, out);
    }
    const std::string& file_name() const override { return bytes_.file_name(); }
    const ckpt::FileState& state() const override { return state_; }

   private:
    MemoryFile bytes_;
    ckpt::FileState state_;
  };

  static ckpt::FileState state_of(const std::string& content) {
    return {.inode = ckpt::crc32(bytes_of(content)), .count_bytes = content.size()};
  }
  // "." and "a/." are the names that a user may give.
  static std::string name_of(const std::filesystem::path& path) {
    std::string name = path.lexically_normal().string();
    if (name.ends_with('/')) name.pop_back();
    return name == "." ? "" : name;
  }

  std::map<std::string, std::string> files_;
  std::set<std::string> folders_;
};

}  // namespace test
