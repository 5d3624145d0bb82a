#include "format/location/location.h"

#include <algorithm>
#include <utility>

#include "io/directory.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBytesMax = uint64_t{4} << 20;  // of a file that stays in memory

class KeptBytes {
 public:
  explicit KeptBytes(std::unique_ptr<OpenedFile> file) : file_(std::move(file)) {}

  const OpenedFile& file() const { return *file_; }
  bool stays() const { return file_->size_bytes() <= kBytesMax; }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const {
    const uint64_t size_bytes = file_->size_bytes();
    const bool is_inside = offset_bytes <= size_bytes && out.size() <= size_bytes - offset_bytes;
    if (!stays() || !is_inside) return file_->read_at(offset_bytes, out);
    std::call_once(is_read_, [&] {
      std::vector<std::byte> bytes(size_bytes);
      file_->read_at(0, bytes);
      bytes_ = std::move(bytes);
    });
    std::ranges::copy(std::span(bytes_).subspan(offset_bytes, out.size()), out.begin());
  }

 private:
  std::unique_ptr<OpenedFile> file_;
  mutable std::once_flag is_read_;
  mutable std::vector<std::byte> bytes_;
};

// What one open() gives.
class KeptFile final : public OpenedFile {
 public:
  KeptFile(std::shared_ptr<const KeptBytes> kept, std::string shown)
      : kept_(std::move(kept)), shown_(std::move(shown)) {}

  uint64_t size_bytes() const override { return kept_->file().size_bytes(); }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    kept_->read_at(offset_bytes, out);
  }
  void read_once(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (kept_->stays()) return read_at(offset_bytes, out);
    kept_->file().read_once(offset_bytes, out);
  }
  const std::string& file_name() const override { return shown_; }
  const FileState& state() const override { return kept_->file().state(); }

 private:
  std::shared_ptr<const KeptBytes> kept_;
  std::string shown_;
};

// Everybody who asks a checkpoint about its run asks the same few files.
class KeptMetadata final : public Folder {
 public:
  KeptMetadata(std::shared_ptr<const Folder> source, const FolderConvention* convention)
      : source_(std::move(source)), names_{".metadata"} {
    if (convention == nullptr) return;
    for (const std::string_view name :
         {convention->tracker, convention->common_file, convention->backend_file}) {
      names_.emplace_back(name);
    }
  }

  std::vector<std::string> list(const fs::path& folder) const override {
    return source_->list(folder);
  }
  bool can_list(const fs::path& folder) const override { return source_->can_list(folder); }
  Entry stat(const fs::path& path) const override { return source_->stat(path); }
  Entry stat_entry(const fs::path& path) const override { return source_->stat_entry(path); }
  void check_inside(const fs::path& folder, const std::string& name) const override {
    source_->check_inside(folder, name);
  }
  fs::path resolved(const fs::path& path) const override { return source_->resolved(path); }

  std::unique_ptr<OpenedFile> open(const fs::path& folder, const Name& name) const override {
    if (std::ranges::find(names_, name.path) == names_.end()) return source_->open(folder, name);
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<const KeptBytes>& kept = kept_[{folder / name.path, name.links}];
    if (!kept) kept = std::make_shared<const KeptBytes>(source_->open(folder, name));
    return std::make_unique<KeptFile>(kept, name.shown.empty() ? name.path : name.shown);
  }

 private:
  std::shared_ptr<const Folder> source_;
  std::vector<std::string> names_;
  mutable std::mutex mutex_;  // guards kept_
  mutable std::map<std::pair<fs::path, Links>, std::shared_ptr<const KeptBytes>> kept_;
};

}  // namespace

bool may_lead_out(const Location& location, const std::string& name, const Limits& limits) {
  return limits.follow_links || (location.named_file && name == *location.only_file);
}

std::unique_ptr<OpenedFile> open_source(const Location& location, const std::string& name,
                                        const std::string& shown, const Limits& limits) {
  const Links links = links_if(may_lead_out(location, name, limits));
  std::unique_ptr<OpenedFile> file = location.source->open(location.folder, {name, shown, links});
  location.opened->note(name, file->state());
  return file;
}

std::shared_ptr<const Folder> keep_metadata(std::shared_ptr<const Folder> source,
                                            const FolderConvention* convention) {
  return std::make_shared<const KeptMetadata>(std::move(source), convention);
}

}  // namespace ckpt
