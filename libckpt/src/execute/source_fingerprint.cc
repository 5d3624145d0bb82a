#include "execute/source_fingerprint.h"

#include "execute/sha256.h"

namespace ckpt {

SourceFingerprint::SourceFingerprint(const Checkpoint& source)
    : folder_(source.folder()), files_(source.files_as_opened()) {}

void SourceFingerprint::check_unchanged() const {
  for (const SourceFile& file : files_) {
    const auto now = state_of(file.path);
    const bool is_same = now && now->inode == file.inode && now->count_bytes == file.count_bytes &&
                         now->modified_ns == file.modified_ns;
    if (is_same) continue;
    throw Error(ErrorCode::Corrupt, {file.path.string()}, "changed while it was read",
                "wait until whoever writes it is done");
  }
}

std::string SourceFingerprint::digest() const {
  Sha256Stream stream;
  for (const SourceFile& file : files_) {
    const std::string line = file.path.lexically_relative(folder_).string() + '\0' +
                             std::to_string(file.inode) + ' ' + std::to_string(file.count_bytes) +
                             ' ' + std::to_string(file.modified_ns) + '\n';
    stream.update(line);
  }
  return hex(stream.finish());
}

}  // namespace ckpt
