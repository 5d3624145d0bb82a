#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>
#include <ckpt/findings.h>
#include <ckpt/key_pattern.h>

namespace ckpt {

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
class SelectedRegions {
 public:
  // `selection` is resolved with all keys of the catalog, or everything.
  SelectedRegions(const Catalog& catalog, const KeySelection& selection);
  bool contains(uint32_t file, const ByteRange& region) const;

 private:
  std::optional<std::set<std::pair<uint32_t, uint64_t>>> starts_;  // none: everything
};

// All keys of a catalog, to resolve a selection with.
std::vector<KeyName> names_in(const Catalog& catalog);

// Checks an opened checkpoint: each archive's headers against its directory, each entry against
// .metadata, files that nothing names or that are missing from the manifest (integrity.json), every
// CRC-32 and every hash of the manifest; and accounts for each byte of each file. Reads every file
// once, in large sequential pieces (files that the manifest lists: their small entries twice).
// What is damaged is returned; thrown is what keeps it from looking: IoFailure, "cancelled". A file
// that is missing (Limits::allow_missing_data) is a finding, and calls for `files_only`.
CKPT_EXPORT Findings verify(const Checkpoint& checkpoint, const VerifyOptions& options = {});

}  // namespace ckpt
