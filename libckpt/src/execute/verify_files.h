#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ckpt/verify.h>

#include "io/file.h"

namespace ckpt {

// What a file of a checkpoint is to verify().
enum class FileRole : uint8_t {
  Archive,      // one torch.save archive
  Entries,      // .distcp: what .metadata places in it
  Safetensors,  // a header that says where the rest is
  Plain,        // read as a whole and without a checksum of its own: .metadata, trackers
  Manifest,     // integrity.json: what it says is compared with the files
  Tracker,      // names the iteration, in the root; holds nothing of it
  Stray,        // nothing names it
};

struct VerifiedFile {
  std::string path;   // relative to Checkpoint::folder()
  std::string shown;  // as errors name it
  FileRole role = FileRole::Plain;
  std::optional<uint32_t> index = std::nullopt;  // into Catalog::files
  uint64_t count_bytes = 0;
  bool is_own = true;  // false: another process looks at it
};

// The checkpoint's files, sorted by the name that errors give them. What lies beside them is listed
// as Stray, with a finding: damage where a writer of checkpoints left it, else a note.
std::vector<VerifiedFile> list_files(const Checkpoint& checkpoint, Share share,
                                     std::vector<Finding>& findings);

// Throws Corrupt for a link that leads out of the checkpoint, as opening the checkpoint does.
File open_verified(const Checkpoint& checkpoint, const VerifiedFile& file);

}  // namespace ckpt
