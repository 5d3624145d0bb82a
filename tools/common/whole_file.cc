#include <common/whole_file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/error.h>

namespace tools {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;

[[noreturn]] void fail(const std::string& path, int number) {
  throw Error(ErrorCode::IoFailure, {.file = path, .key = {}}, std::strerror(number));
}

[[noreturn]] void refuse(const std::string& path) {
  throw Error(ErrorCode::AlreadyExists, {.file = path, .key = {}}, "it exists already",
              "--force replaces it");
}

// A file that goes away again unless it is renamed.
class PartialFile {
 public:
  explicit PartialFile(const std::string& path) : name_(path + ".XXXXXX") {
    descriptor_ = ::mkostemp(name_.data(), O_CLOEXEC);
    if (descriptor_ < 0) fail(path, errno);
    const mode_t mask = ::umask(0);
    ::umask(mask);
    ::fchmod(descriptor_, 0666 & ~mask);
  }
  ~PartialFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(descriptor_, text.data(), text.size());
      if (count < 0 && errno != EINTR) fail(name_, errno);
      if (count > 0) text.remove_prefix(static_cast<size_t>(count));
    }
    if (::fsync(descriptor_) != 0) fail(name_, errno);
    const int closed = ::close(std::exchange(descriptor_, -1));
    if (closed != 0) fail(name_, errno);
  }

  void become(const std::string& path, bool replaces) {
    if (replaces) {
      if (::rename(name_.c_str(), path.c_str()) != 0) fail(path, errno);
      name_.clear();
      return;
    }
    // Unlike rename(), link() does not replace what somebody else put there meanwhile.
    if (::link(name_.c_str(), path.c_str()) == 0) return;
    if (errno == EEXIST) refuse(path);
    const bool has_no_links = errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS;
    if (!has_no_links) fail(path, errno);
    refuse_existing(path);
    become(path, true);
  }

 private:
  std::string name_;
  int descriptor_ = -1;
};

// What --force may replace: a page that was made before.
bool is_page_or_empty(const std::string& path) {
  constexpr std::string_view kBegin = "<!doctype html>";
  std::ifstream stream(path, std::ios::binary);
  std::string begin(kBegin.size(), '\0');
  stream.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(stream.gcount()));
  return begin.empty() || begin == kBegin;
}

}  // namespace

void refuse_existing(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (std::filesystem::exists(status)) refuse(path);
}

void refuse_output(const std::string& path, const std::string& source) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    throw Error(ErrorCode::NotFound, {.file = folder.string(), .key = {}},
                "the folder of the output is not there");
  }
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return;
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(ErrorCode::InvalidArgument, {.file = path, .key = {}},
                "is not a file, and is never replaced", "give the name of a new file");
  }
  const auto place = std::filesystem::weakly_canonical(path, error);
  const auto checkpoint = std::filesystem::weakly_canonical(source, error);
  const auto [end, rest] = std::ranges::mismatch(checkpoint, place);
  if (end == checkpoint.end()) {
    throw Error(ErrorCode::InvalidArgument, {.file = path, .key = {}},
                "belongs to the checkpoint, and is never replaced", "give a name elsewhere");
  }
}

void refuse_other_than_page(const std::string& path) {
  if (is_page_or_empty(path)) return;
  throw Error(ErrorCode::InvalidArgument, {.file = path, .key = {}},
              "is not an HTML page, and is never replaced", "-o names a new file");
}

void write_whole_file(const std::string& path, std::string_view text, bool replaces) {
  PartialFile file(path);
  file.write(text);
  file.become(path, replaces);
}

}  // namespace tools
