#include <ckpt/archive_builder.h>

#include <ckpt/error.h>

#include <algorithm>

namespace ckpt {

NodeId ArchiveBuilder::add_tensor(DType dtype, const Extents& shape, RecordSource source) {
  const std::string key = std::to_string(records_.size());
  records_.push_back({element_count(shape) * bytes_per_element(dtype), std::move(source)});
  return ckpt::add_tensor(tree_, dtype, shape, key);
}

NodeId ArchiveBuilder::carry(const Value& value, const Document& document) {
  const NodeId copied = tree_.copy(value);
  renumber_storages(copied, document);
  return copied;
}

void ArchiveBuilder::renumber_storages(NodeId first, const Document& document) {
  const auto end = static_cast<NodeId>(tree_.node_count());
  for (NodeId node = first; node < end; ++node) {
    if (tree_.value(node).kind() != Kind::PersistentId) continue;
    const Value id = tree_.value(node).persistent_id();
    if (!id.is(Kind::Tuple) || id.size() < 5 || !id[2].is(Kind::Str)) {
      throw Error(ErrorCode::Corrupt, {}, "a persistent ID does not name a storage");
    }
    const StorageRecord* storage = document.find_storage(id[2].text());
    if (storage == nullptr) {
      throw Error(ErrorCode::Corrupt, {.file = {}, .key = std::string(id[2].text())},
                  "the archive has no storage of this name");
    }
    const auto [carried, added] = carried_.try_emplace({&document, storage->key}, records_.size());
    if (added) {
      records_.push_back({storage->region.bytes.count_bytes, StorageSource{storage->region}});
    }
    std::vector<NodeId> parts;
    for (size_t i = 0; i < 5; ++i) parts.push_back(id[i].id());  // legacy files have a sixth
    parts[2] = tree_.str(std::to_string(carried->second));
    tree_.set_persistent_id(node, tree_.sequence(Kind::Tuple, parts));
  }
}

TargetArchive ArchiveBuilder::finish(std::string name, NodeId root) {
  tree_.set_root(root);
  carried_.clear();
  return {std::move(name), std::make_shared<const ValueTree>(std::exchange(tree_, ValueTree())),
          std::exchange(records_, {})};
}

Document ArchiveBuilder::finish_document(NodeId root) {
  tree_.set_root(root);
  carried_.clear();
  Document document{std::exchange(tree_, ValueTree()), {}};
  for (size_t i = 0; i < records_.size(); ++i) {
    document.storages.push_back(
        {std::to_string(i), std::get<StorageSource>(records_[i].source).region});
  }
  records_.clear();
  std::ranges::sort(document.storages, {}, &StorageRecord::key);
  return document;
}

}  // namespace ckpt
