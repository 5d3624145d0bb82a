#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>
#include <ckpt/execute.h>
#include <ckpt/key_pattern.h>

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

enum class Severity : uint8_t { Note, Damage };
enum class CheckKind : uint8_t {
  Structure,  // files, archives, metadata: what is where
  Content,    // checksums
  Meaning,    // what state must be like; added by liboptim
};
CKPT_EXPORT std::string_view name(CheckKind check);  // "structure", ...

struct Finding {
  CheckKind check = CheckKind::Structure;
  Severity severity = Severity::Damage;
  Where where;
  std::string problem;
  std::string hint = {};
  bool is_file_hash = false;  // of a whole file: other findings in the file explain it
};

struct FileAccount {
  std::string path;               // as errors name it
  std::vector<ByteRange> pieces;  // what was looked at: all of it, or the share's part, in order
  uint64_t count_bytes = 0;       // of the pieces
  uint64_t file_bytes = 0;
  std::array<uint64_t, kByteLabelCount> labelled_bytes = {};  // by ByteLabel, of the pieces
  bool has_manifest_hash = false;                             // integrity.json lists it

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
  CKPT_EXPORT void sort();
};

// Bytes of a storage, as they pass by: pieces of one storage come in any order, from any thread,
// each byte once. A piece starts at a multiple of 4096 bytes of the storage, and ends at one or
// with the storage.
struct StoragePiece {
  uint32_t file = 0;          // index into Catalog::files
  ByteRange region;           // the catalog's: an entry of a .distcp file, else the storage itself
  ByteRange storage;          // in the file
  uint64_t offset_bytes = 0;  // of the piece in the storage
  std::span<const std::byte> bytes;
};

struct LabelledRange {
  std::string_view path;  // as FileAccount::path
  ByteRange bytes;
  ByteLabel label = ByteLabel::Padding;
};

struct VerifyOptions {
  bool quick = false;  // structure alone: reads no payload
  // With `quick`: looks into no archive. For checkpoints of very many chunks: what is left is
  // whether the files are there, and what lies beside them. No byte is labelled.
  bool files_only = false;
  bool require_checksums = false;  // unprotected bytes are damage; but for a root's tracker
  // Of several processes each looks at files, and at pieces of those that are at least twice
  // `piece_bytes_min` long, balanced by bytes: what it finds in them is returned, and their
  // accounts. A piece starts with a tensor; files that the manifest lists are not cut, for their
  // hash's sake.
  // What is found of no file is the first process's.
  Share share;
  // Payload of these tensors alone is read, resolved with all keys of the catalog; structure is
  // checked of all.
  KeySelection selection;
  ExecuteOptions execution;
  // Both are called from several threads at once.
  std::function<void(const StoragePiece&)> on_storage = {};
  std::function<void(const LabelledRange&)> on_range = {};
};

// Where the payload of the selected tensors and objects is.
class CKPT_EXPORT SelectedRegions {
 public:
  // `selection` is resolved with all keys of the catalog, or everything.
  SelectedRegions(const Catalog& catalog, const KeySelection& selection);
  bool contains(uint32_t file, const ByteRange& region) const;

 private:
  std::optional<std::set<std::pair<uint32_t, uint64_t>>> starts_;  // none: everything
};

// All keys of a catalog, to resolve a selection with.
CKPT_EXPORT std::vector<KeyName> names_in(const Catalog& catalog);

// Checks an opened checkpoint: each archive's headers against its directory, each entry against
// .metadata, files that nothing names or that are missing from the manifest (integrity.json), every
// CRC-32 and every hash of the manifest; and accounts for each byte of each file. Reads every file
// once, in large sequential pieces (files that the manifest lists: their small entries twice).
// What is damaged is returned; thrown is what keeps it from looking: IoFailure, "cancelled". A file
// that is missing (Limits::allow_missing_data) is a finding, and calls for `files_only`.
CKPT_EXPORT Findings verify(const Checkpoint& checkpoint, const VerifyOptions& options = {});

}  // namespace ckpt
