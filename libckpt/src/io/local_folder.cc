// The local disk as a source of checkpoints: paths are opened below their folders, so that no link
// leads out; what is read once leaves the page cache (decision 0074).
#include <ckpt/folder.h>

#include <map>
#include <mutex>

#include "io/directory.h"
#include "io/drop_behind.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

// By path: a file that is opened again goes on where it was. Thread-safe.
class PassingFiles {
 public:
  DropBehind& of(const fs::path& path, const File& file) {
    const std::scoped_lock lock(mutex_);
    return files_.try_emplace(path, file).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<fs::path, DropBehind> files_;
};

class LocalFile final : public File {
 public:
  LocalFile(File file, fs::path path, std::shared_ptr<PassingFiles> passing)
      : File(std::move(file)), path_(std::move(path)), passing_(std::move(passing)) {}

  void read_once(uint64_t offset_bytes, std::span<std::byte> out) const override {
    DropBehind& drop_behind = passing_->of(path_, *this);  // looks before the first byte is read
    read_at(offset_bytes, out);
    drop_behind.passed(*this, offset_bytes, out.size());
  }

 private:
  fs::path path_;
  std::shared_ptr<PassingFiles> passing_;
};

class LocalFolder final : public Folder {
 public:
  std::vector<std::string> list(const fs::path& folder) const override {
    return Directory::open(folder).list();
  }
  Entry stat(const fs::path& path) const override { return entry_behind(path); }
  Entry stat_entry(const fs::path& path) const override { return entry_at(path); }
  std::unique_ptr<OpenedFile> open(const fs::path& folder, const Name& name) const override {
    File file = Directory::open(folder).open_file(name.path, name.shown, name.links);
    return std::make_unique<LocalFile>(std::move(file), folder / name.path, passing_);
  }
  void check_inside(const fs::path& folder, const std::string& name) const override {
    Directory::open(folder).check_inside(name);
  }
  fs::path resolved(const fs::path& path) const override { return ckpt::resolved(path); }

 private:
  std::shared_ptr<PassingFiles> passing_ = std::make_shared<PassingFiles>();
};

}  // namespace

std::shared_ptr<const Folder> local_folder() { return std::make_shared<const LocalFolder>(); }

}  // namespace ckpt
