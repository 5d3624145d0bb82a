#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ckpt/hash.h>
#include <ckpt/plan.h>
#include <ckpt/verify.h>

namespace ckpt {

// What a file of a checkpoint is to verify().
enum class FileRole : uint8_t {
  Archive,      // one torch.save archive
  Entries,      // .distcp, or what .metadata places archives in
  Safetensors,  // a header that says where the rest is
  Plain,        // read as a whole and without a checksum of its own: .metadata
  Manifest,     // integrity.json, where it can be read: what it says is compared with the files
  Tracker,      // names the iteration, in the root; holds nothing of it
  Stray,        // nothing names it
  Beside,       // the same, beside a plain checkpoint: read, with what structure it has checked
  Cut,          // one of the checkpoint's, which ends early: a finding says so
};

struct VerifiedFile {
  std::string path;   // relative to Checkpoint::folder()
  std::string shown;  // as errors name it
  FileRole role = FileRole::Plain;
  std::optional<uint32_t> index = std::nullopt;  // into Catalog::files
  uint64_t count_bytes = 0;
  std::optional<Sha256> manifest_hash = std::nullopt;
  std::vector<ByteRange> own = {};  // pieces, in order, that this share looks at
  std::string beside = {};          // FileAccount::beside

  uint64_t own_bytes() const;
};

// The checkpoint's files, sorted by the name that errors give them. What lies beside them is listed
// as Stray, with a finding: damage where a writer of checkpoints left it, else a note. The manifest
// has said which hash each file has, if there is one that can be read.
std::vector<VerifiedFile> list_files(const Checkpoint& checkpoint, std::vector<Finding>& findings);

// Gives this share its pieces of the files: all shares together have each byte once, and of a file
// without bytes the empty piece. Pure. Throws InvalidArgument for a share that is not valid.
void deal_files(std::vector<VerifiedFile>& files, const Catalog& catalog, const Share& share);

// Whether what lies beside is read and checked: no convention says what else belongs there. A file
// that was named shares its folder with whatever else is there.
bool is_plain_folder(const Checkpoint& checkpoint);

// Names of files that say what is where, and hold no state themselves; read as a whole.
bool is_about_files(const std::string& name, const FolderConvention* convention);

// Throws Corrupt for a link that leads out of the checkpoint, as opening the checkpoint does.
std::unique_ptr<OpenedFile> open_verified(const Checkpoint& checkpoint, const VerifiedFile& file);

}  // namespace ckpt
