// Which folder a path is read through, by the scheme of its address; the local disk: paths are
// opened below their folders, so that no link leads out; what is read once leaves the page cache.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/folder.h>
#include <ckpt/named_file.h>

#include "io/directory.h"
#include "io/file.h"
#include "io/system_calls.h"

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

constexpr size_t kPieceBytes = size_t{64} << 10;

[[noreturn]] void refuse_long(const std::string& name, uint64_t bytes_max) {
  throw Error(ErrorCode::Unsupported, {name},
              "is longer than " + std::to_string(bytes_max) + " bytes, which such a file is not");
}

// A pipe that was opened without waiting: nobody writes to one that is at its end at once. Then
// this waits for the writer.
std::string read_pipe(const FileDescriptor& pipe, const std::string& name, uint64_t bytes_max) {
  SystemCalls& calls = system_calls();
  std::string text, piece(kPieceBytes, '\0');
  const auto read = [&] {
    return uninterrupted([&] { return calls.read(pipe.get(), piece.data(), piece.size()); });
  };
  ssize_t count = read();
  if (count == 0) throw Error(ErrorCode::IoFailure, {name}, "is a pipe that nobody writes to");
  if (count < 0 && errno != EAGAIN) throw_errno(name, "read", errno);
  if (calls.set_flags(pipe.get(), 0) != 0) throw_errno(name, "wait for the pipe", errno);
  if (count < 0) count = read();
  for (; count > 0; count = read()) {
    text.append(piece, 0, static_cast<size_t>(count));
    if (text.size() > bytes_max) refuse_long(name, bytes_max);
  }
  if (count < 0) throw_errno(name, "read", errno);
  return text;
}

std::string read_whole(const OpenedFile& file, uint64_t bytes_max) {
  if (file.size_bytes() > bytes_max) refuse_long(file.file_name(), bytes_max);
  std::string text(file.size_bytes(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

struct AddedSources {
  std::mutex mutex;
  std::map<std::string, MakeFolder, std::less<>> by_scheme;

  static AddedSources& all() {
    static AddedSources added;
    return added;
  }
  MakeFolder find(std::string_view scheme) {
    const std::scoped_lock lock(mutex);
    const auto found = by_scheme.find(scheme);
    return found == by_scheme.end() ? MakeFolder() : found->second;
  }
};

}  // namespace

std::shared_ptr<const Folder> local_folder() { return std::make_shared<const LocalFolder>(); }

std::string read_named_file(const std::filesystem::path& path, uint64_t bytes_max) {
  const std::string name = path.string();
  if (has_source(scheme_of(name))) {
    const auto source = source_of(path);
    return read_whole(*source->open(path.parent_path(), {path.filename().string(), name}),
                      bytes_max);
  }
  // O_NONBLOCK: a pipe must not make us wait for its writer.
  FileDescriptor descriptor = NameAt(path).open(O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!descriptor.is_open()) throw_errno(name, "open", errno);
  struct stat status = {};
  if (uninterrupted([&] { return system_calls().fstat(descriptor.get(), status); }) != 0) {
    throw_errno(name, "read the file's size and type", errno);
  }
  return S_ISFIFO(status.st_mode) ? read_pipe(descriptor, name, bytes_max)
                                  : read_whole(File(std::move(descriptor), name), bytes_max);
}

std::string_view scheme_of(std::string_view path) {
  const std::string_view scheme = path.substr(0, std::min(path.find("://"), path.size()));
  if (scheme.size() < 2 || scheme.size() == path.size()) return {};
  const bool is_name = std::ranges::all_of(scheme, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '-' || c == '.';
  });
  return is_name ? scheme : std::string_view();
}

void add_source(const std::string& scheme, MakeFolder make) {
  AddedSources& added = AddedSources::all();
  const std::scoped_lock lock(added.mutex);
  added.by_scheme[scheme] = std::move(make);
}

bool has_source(std::string_view scheme) { return bool(AddedSources::all().find(scheme)); }

std::shared_ptr<const Folder> source_of(const std::filesystem::path& path) {
  const MakeFolder make = AddedSources::all().find(scheme_of(path.native()));
  return make ? make() : local_folder();
}

EntryKind kind_at(const std::filesystem::path& path) {
  try {
    return source_of(path)->kind_of(path);
  } catch (const Error&) {
    return EntryKind::Absent;
  }
}

}  // namespace ckpt
