#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/export.h>
#include <ckpt/target.h>

namespace ckpt {

// Builds one torch.save archive: a value tree whose tensors get the storages "0", "1", ... in the
// order in which they are added. Not thread-safe.
class ArchiveBuilder {
 public:
  ValueTree& tree() { return tree_; }

  // A row-major tensor with a storage of its own.
  CKPT_EXPORT NodeId add_tensor(DType dtype, const Extents& shape, RecordSource source);

  // Copies a value of a document with the storages that it views; a storage that several values
  // share is carried once. Throws Corrupt where a storage is missing from the document.
  NodeId carry(const Value& value, const Document& document);

  // Sets the root and gives everything away.
  CKPT_EXPORT TargetArchive finish(std::string name, NodeId root);
  // The same as a document of the source's storages: for values that were carried, without tensors
  // that were added.
  Document finish_document(NodeId root);

 private:
  ValueTree tree_;
  std::vector<TargetRecord> records_;
  std::map<std::pair<const Document*, std::string>, size_t> carried_;
};

// Where the payloads of an archive lie once it is written, in bytes from the start of the archive.
struct ArchiveLayout {
  std::vector<ByteRange> records;  // as TargetArchive::records
  // From here on checksums of all records are stated; the end where none are.
  uint64_t closing_offset_bytes = 0;
  uint64_t count_bytes = 0;  // of the whole archive
};

// Pure. Throws InvalidArgument where the archive cannot be written: a name of more than 65,500
// bytes, more than 2^62 bytes, a BareTensor without exactly one record.
ArchiveLayout archive_layout(const TargetArchive& archive);

}  // namespace ckpt
