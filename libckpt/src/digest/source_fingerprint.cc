#include "digest/source_fingerprint.h"

#include <ckpt/error.h>

#include "codec/sha256.h"

namespace ckpt {

SourceFingerprint::SourceFingerprint(const Checkpoint& source)
    : source_(source.source()), folder_(source.folder()), files_(source.files_as_opened()) {}

void SourceFingerprint::check_unchanged() const {
  for (const SourceFile& file : files_) {
    const Folder::Entry now = source_.stat(file.path);
    if (now.kind != EntryKind::Absent && now.state == file.state) continue;
    throw Error(ErrorCode::Corrupt, {file.path.string()}, "changed while it was read",
                "wait until the process that writes it has finished");
  }
}

std::string SourceFingerprint::digest() const {
  Sha256Stream stream;
  for (const auto& [path, state] : files_) {
    const std::string line = path.lexically_relative(folder_).string() + '\0' +
                             std::to_string(state.inode) + ' ' + std::to_string(state.count_bytes) +
                             ' ' + std::to_string(state.modified_ns) + '\n';
    stream.update(line);
  }
  return hex(stream.finish());
}

}  // namespace ckpt
