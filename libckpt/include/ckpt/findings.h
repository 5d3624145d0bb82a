#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/error.h>

namespace ckpt {

// What would notice if a byte of a checkpoint's files changed. Every byte has one label.
enum class ByteLabel : uint8_t {
  Checksummed,  // a CRC-32 or a manifest's hash covers it
  Repeated,     // a constant, or stored a second time elsewhere: both are compared
  Unprotected,  // it has a meaning, and nothing would notice
  Padding,      // no reader looks at it
  Unclaimed,    // it belongs to nothing that the checkpoint names: always a finding
};
inline constexpr size_t kByteLabelCount = 5;
CKPT_EXPORT std::string_view name(ByteLabel label);  // "checksummed", ...

inline constexpr std::string_view kNotChecked = "not checked";

enum class Severity : uint8_t { Note, Damage };
enum class CheckKind : uint8_t {
  Structure,  // files, archives, metadata: what is where
  Content,    // checksums
  Meaning,    // what state must be like; added by libtraining
};
CKPT_EXPORT std::string_view name(CheckKind check);  // "structure", ...

struct Finding {
  CheckKind check = CheckKind::Structure;
  Severity severity = Severity::Damage;
  Where where;
  std::string problem;
  std::string hint = {};
  bool is_file_hash = false;   // of a whole file: other findings in the file explain it
  bool is_incomplete = false;  // a file is missing, or ends early
};

struct FileAccount {
  std::string path;               // as errors name it
  std::vector<ByteRange> pieces;  // what was looked at: all of it, or the share's part, in order
  uint64_t count_bytes = 0;       // of the pieces
  uint64_t file_bytes = 0;
  std::array<uint64_t, kByteLabelCount> labelled_bytes = {};  // by ByteLabel, of the pieces
  bool has_manifest_hash = false;                             // integrity.json lists it
  // Of a file beside a plain checkpoint: what it was read as ("torch.save", "JSON"), or
  // kNotChecked; empty for the checkpoint's own.
  std::string beside = {};

  // Whether a piece has what starts here. What starts at the end, or is said to lie behind it,
  // belongs to the last piece of the file.
  CKPT_EXPORT bool owns(uint64_t offset_bytes) const;
};

struct Findings {
  std::vector<Finding> findings;    // sorted by file, offset, key
  std::vector<FileAccount> files;   // of the share, in the order of their names
  uint64_t file_count = 0;          // of the whole checkpoint
  uint64_t compared_checksums = 0;  // CRC-32 and hashes; 0 after a quick look
  uint64_t failed_checksums = 0;    // of these
  uint64_t read_bytes = 0;          // of payload and manifests

  CKPT_EXPORT bool damaged() const;
  CKPT_EXPORT uint64_t labelled_bytes(ByteLabel label) const;  // of all files
  void sort();
};

// A file of two that are to be copies of each other, and how it is not.
struct CopyDifference {
  std::string file;  // relative to the folder of both
  std::string problem;
};

struct CopyReport {
  std::filesystem::path original;  // the folder or file that was compared with
  uint64_t file_count = 0;         // that both have
  uint64_t count_bytes = 0;        // of them, in the copy
  uint64_t linked_count = 0;  // of them one and the same file on the disk: nothing was compared
  std::vector<CopyDifference> differences;  // by file
};

}  // namespace ckpt
