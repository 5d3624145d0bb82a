#include "digest/source_fingerprint.h"

#include "codec/sha256.h"

namespace ckpt {

SourceFingerprint::SourceFingerprint(const Checkpoint& source)
    : folder_(source.folder()), files_(source.files_as_opened()) {}

void SourceFingerprint::check_unchanged() const {
  for (const SourceFile& file : files_) {
    if (state_of(file.path) == file.state) continue;
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
