#pragma once

#include <optional>
#include <string>

#include <ckpt/files_beside.h>

#include "verify/verify_files.h"

namespace ckpt {

// What a file beside a plain checkpoint turned out to be.
struct BesideCheck {
  FileRole role = FileRole::Beside;
  std::string read_as{kNotChecked};  // FileAccount::beside
  std::optional<Finding> finding = std::nullopt;
};

// Reads a file's structure: torch.save archives (whose checksums verify() then compares) and legacy
// files, safetensors, pickles, JSON. Damage is a finding; what is none of these, or is not
// supported, is a note. Throws IoFailure.
BesideCheck check_beside(const Checkpoint& checkpoint, const FileBeside& file);

// Not a link that leads out of the folder, nor anything but a file.
bool can_open_beside(const Checkpoint& checkpoint, const FileBeside& file);

}  // namespace ckpt
