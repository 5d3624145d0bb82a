#include "targets/archive_layouts.h"

namespace ckpt {
namespace {

constexpr size_t kShapesMax = 4096;  // of a file that has as many shapes as chunks

}  // namespace

const ArchiveLayout& ArchiveLayouts::of(const TargetArchive& archive) {
  const auto* const bare = std::get_if<BareTensor>(&archive.content);
  if (bare == nullptr || archive.records.size() != 1) return of_tree(archive);
  if (of_bare_tensors_.size() >= kShapesMax) of_bare_tensors_.clear();
  const BareKey key{archive.records[0].count_bytes, bare->dtype, bare->shape, archive.name};
  const auto found = of_bare_tensors_.find(key);
  if (found != of_bare_tensors_.end()) return found->second;
  return of_bare_tensors_.emplace(key, archive_layout(archive)).first->second;
}

const ArchiveLayout& ArchiveLayouts::of_tree(const TargetArchive& archive) {
  const auto* const shared = std::get_if<std::shared_ptr<const ValueTree>>(&archive.content);
  const ValueTree* const tree = shared && archive.records.empty() ? shared->get() : nullptr;
  if (tree != nullptr && tree == tree_of_other_ && archive.name == name_of_other_) return other_;
  other_ = archive_layout(archive);
  tree_of_other_ = tree;
  name_of_other_ = archive.name;
  return other_;
}

}  // namespace ckpt
