#include "io/place.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include <ckpt/error.h>

#include "io/file.h"

namespace ckpt {

namespace fs = std::filesystem;

void refuse_foreign(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::AlreadyExists, {path.string()},
              what + ": it was not made by this program, and is neither followed nor removed",
              "move it elsewhere, or give another destination");
}

Place Place::held(const Place& folder) {
  const NameAt at(folder);
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | at.no_follow();
  const int fd =
      uninterrupted([&] { return system_calls().openat(at.folder(), at.path(), flags, 0); });
  if (fd < 0 && folder.is_held() && (errno == ELOOP || errno == ENOTDIR)) {
    refuse_foreign(folder.path(), "is a link or a file where a folder of ours is expected");
  }
  if (fd < 0) throw_errno(folder.path().string(), "open the folder", errno);
  Place place(folder.path());
  place.holder_ = std::make_shared<const FileDescriptor>(fd);
  return place;
}

Place Place::operator/(const fs::path& below) const {
  Place place(*this);
  place.path_ /= below;
  if (is_held()) place.below_ /= below;
  return place;
}

NameAt::NameAt(const Place& place) : folder_(place.holder_) {
  if (!place.is_held()) {
    name_ = place.path_.string();
    return;
  }
  no_follow_ = O_NOFOLLOW;
  fs::path shown = place.path_;
  for (auto part = place.below_.begin(); part != place.below_.end(); ++part) {
    shown = shown.parent_path();
  }
  for (const fs::path& part : place.below_.parent_path()) enter(part, shown /= part);
  name_ = place.below_.empty() ? "." : place.below_.filename().string();
}

int NameAt::folder() const { return folder_ ? folder_->get() : AT_FDCWD; }

void NameAt::enter(const fs::path& name, const fs::path& shown) {
  constexpr int kFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const int fd =
      uninterrupted([&] { return system_calls().openat(folder(), name.c_str(), kFlags, 0); });
  if (fd < 0 && (errno == ELOOP || errno == ENOTDIR)) {
    refuse_foreign(shown, "is a link or a file where a folder of ours is expected");
  }
  if (fd < 0) throw_errno(shown.string(), "open the folder", errno);
  folder_ = std::make_shared<const FileDescriptor>(fd);
}

}  // namespace ckpt
