#include "staging/folder_to_come.h"

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include <ckpt/error.h>

#include "remote/url_text.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

class TextFile final : public OpenedFile {
 public:
  TextFile(std::shared_ptr<const std::string> text, std::string name)
      : text_(std::move(text)), name_(std::move(name)), state_{.count_bytes = text_->size()} {}

  uint64_t size_bytes() const override { return text_->size(); }
  const FileState& state() const override { return state_; }
  const std::string& file_name() const override { return name_; }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > text_->size() || out.size() > text_->size() - offset_bytes) {
      throw Error(ErrorCode::Corrupt, {name_, offset_bytes}, "more bytes are expected here");
    }
    std::memcpy(out.data(), text_->data() + offset_bytes, out.size());
  }

 private:
  std::shared_ptr<const std::string> text_;
  std::string name_;
  FileState state_;
};

class FolderToCome final : public Folder {
 public:
  FolderToCome(std::shared_ptr<const Folder> store, HeldTexts held)
      : store_(std::move(store)), held_(std::move(held)) {}

  std::vector<std::string> list(const fs::path& folder) const override {
    std::set<std::string> names;
    if (store_->has(folder)) {
      for (std::string& name : store_->list(folder)) names.insert(std::move(name));
    }
    const std::string start = below(folder);
    for (auto held = held_.lower_bound(start); held != held_.end(); ++held) {
      if (!held->first.starts_with(start)) break;
      names.insert(
          held->first.substr(start.size(), held->first.find('/', start.size()) - start.size()));
    }
    if (names.empty()) throw Error(ErrorCode::NotFound, {folder.string()}, "does not exist");
    return {names.begin(), names.end()};
  }

  Entry stat(const fs::path& path) const override {
    const auto held = held_.find(parse_address(path).path);
    if (held != held_.end()) return {EntryKind::File, {.count_bytes = held->second->size()}};
    const Entry entry = store_->stat(path);
    const auto inside = held_.lower_bound(below(path));
    const bool is_folder = inside != held_.end() && inside->first.starts_with(below(path));
    return entry.kind == EntryKind::Absent && is_folder ? Entry{EntryKind::Folder, {}} : entry;
  }

  std::unique_ptr<OpenedFile> open(const fs::path& folder, const Name& name) const override {
    check_inside(folder, name.path);
    const auto held = held_.find(parse_address(folder / name.path).path);
    if (held == held_.end()) return store_->open(folder, name);
    return std::make_unique<TextFile>(held->second, name.shown.empty() ? name.path : name.shown);
  }

  void check_inside(const fs::path& folder, const std::string& name) const override {
    store_->check_inside(folder, name);
  }
  fs::path resolved(const fs::path& path) const override { return store_->resolved(path); }

 private:
  static std::string below(const fs::path& folder) { return parse_address(folder).path + "/"; }

  std::shared_ptr<const Folder> store_;
  HeldTexts held_;
};

}  // namespace

std::shared_ptr<const Folder> folder_to_come(std::shared_ptr<const Folder> bucket, HeldTexts held) {
  return std::make_shared<const FolderToCome>(std::move(bucket), std::move(held));
}

}  // namespace ckpt
