#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/document.h>
#include <ckpt/export.h>
#include <ckpt/target.h>

namespace ckpt {

// Builds one torch.save archive: a value tree whose tensors get the storages "0", "1", ... in the
// order in which they are added. Not thread-safe.
class CKPT_EXPORT ArchiveBuilder {
 public:
  ValueTree& tree() { return tree_; }

  // A row-major tensor with a storage of its own.
  NodeId add_tensor(DType dtype, const Extents& shape, RecordSource source);

  // Copies a value of a document with the storages that it views; a storage that several values
  // share is carried once. Throws Corrupt where a storage is missing from the document.
  NodeId carry(const Value& value, const Document& document);

  // Sets the root and gives everything away.
  TargetArchive finish(std::string name, NodeId root);
  // The same as a document of the source's storages: for values that were carried, without tensors
  // that were added.
  Document finish_document(NodeId root);

 private:
  void renumber_storages(NodeId first, const Document& document);

  ValueTree tree_;
  std::vector<TargetRecord> records_;
  std::map<std::pair<const Document*, std::string>, size_t> carried_;
};

}  // namespace ckpt
