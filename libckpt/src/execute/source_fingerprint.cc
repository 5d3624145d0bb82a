#include "execute/source_fingerprint.h"

#include "execute/sha256.h"

namespace ckpt {

SourceFingerprint::SourceFingerprint(const Checkpoint& source) : folder_(source.folder()) {
  for (std::filesystem::path& path : source.files()) {
    const auto state = state_of(path);
    if (!state) throw Error(ErrorCode::NotFound, {path.string()}, "is gone");
    files_.emplace_back(std::move(path), *state);
  }
}

void SourceFingerprint::check_unchanged() const {
  for (const auto& [path, before] : files_) {
    if (state_of(path) == before) continue;
    throw Error(ErrorCode::Corrupt, {path.string()}, "changed while it was read",
                "wait until whoever writes it is done");
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
