#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>

namespace ckpt {

// The state of every file of a source: size, time of the last change, inode. What it was when the
// source was opened, and what it is after its bytes were read, shows a source that somebody writes
// to meanwhile.
class SourceFingerprint {
 public:
  // Throws NotFound where a file is missing. `source` must outlive it.
  explicit SourceFingerprint(const Checkpoint& source);

  // Throws Corrupt, with the file's name, where a file is not as it was.
  void check_unchanged() const;

  // SHA-256, hexadecimal: equal on every machine that sees the same files under the same names.
  std::string digest() const;

 private:
  const Folder& source_;
  std::filesystem::path folder_;
  std::vector<SourceFile> files_;
};

}  // namespace ckpt
