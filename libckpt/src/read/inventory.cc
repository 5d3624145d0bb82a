#include <ckpt/inventory.h>

#include <map>

#include <ckpt/error.h>

#include "format/torch/torch_save.h"

namespace ckpt {
namespace {

// Finds what an object entry of a torch.save file means. Two keys may have one text (1 and "1"):
// entries of one name are taken in order, as they were listed.
class ObjectFinder {
 public:
  explicit ObjectFinder(const Document& document) {
    const Value root = document.tree.root();  // of a file that is listed as one object
    if (root.is(Kind::Dict)) objects_.emplace("", RootObject{"", root.id()});
    for (const RootObject& object : root_objects(document)) {
      objects_.emplace(object.pointer, object);
    }
  }

  RootObject take(const ObjectEntry& object) {
    const auto first = objects_.extract(object.key);
    if (first.empty()) {
      throw Error(ErrorCode::NotFound, {object.file, std::nullopt, object.key}, "no such object");
    }
    return first.mapped();
  }

 private:
  std::multimap<std::string, RootObject> objects_;  // those that were not taken
};

// A document of the checkpoint, not owned: it lives as long as the checkpoint.
std::shared_ptr<const Document> borrow(const Document& document) {
  return {std::shared_ptr<const Document>(), &document};
}

}  // namespace

Inventory native_inventory(const Checkpoint& checkpoint) {
  const Catalog& catalog = checkpoint.catalog();
  Inventory inventory{catalog.tensors, {}};
  std::map<const Document*, ObjectFinder> finders;
  for (const ObjectEntry& object : catalog.objects) {
    if (object.region) {
      auto document = std::make_shared<const Document>(checkpoint.read_object(object));
      const NodeId root = document->tree.root().id();
      inventory.objects.push_back({object.file, object.key, std::move(document), root, true});
      continue;
    }
    // A single file's entries name no file.
    const std::string& file = object.file.empty() ? catalog.files.at(0).path : object.file;
    const Document* document = checkpoint.document(file);
    if (document == nullptr) {
      throw Error(ErrorCode::NotFound, {object.file, std::nullopt, object.key}, "no such file");
    }
    const RootObject found = finders.try_emplace(document, *document).first->second.take(object);
    inventory.objects.push_back(
        {object.file, object.key, borrow(*document), found.node, false, found.key_kind});
  }
  return inventory;
}

}  // namespace ckpt
