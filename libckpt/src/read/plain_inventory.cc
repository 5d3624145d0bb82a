// Plain state dicts under names that do not depend on the format: what torch.distributed.checkpoint
// flattens (flatten_state_dict) is entered, everything else is one object.
#include <algorithm>
#include <map>

#include <ckpt/error.h>
#include <ckpt/inventory.h>

#include "base/text.h"
#include "format/format.h"
#include "format/torch/torch_save.h"
#include "format/values/nesting.h"
#include "format/values/typed_key.h"

namespace ckpt {
namespace {

class FileWalk {
 public:
  FileWalk(const Checkpoint& checkpoint, const Document& document, KeyTypes types)
      : catalog_(checkpoint.catalog()),
        types_(types),
        document_(std::shared_ptr<const Document>(), &document),
        visits_left_(16 * document.tree.node_count() + (1U << 20)) {}

  Inventory run() {
    open_.push_back({document_->tree.root(), {}, {}});
    while (!open_.empty()) {
      const Step step = std::move(open_.back());
      open_.pop_back();
      visit(step);
    }
    return std::move(inventory_);
  }

 private:
  struct Step {
    Value value;
    PointerPath::Step place;
    PointerPath::Step name;  // the same with types of keys
  };

  void visit(const Step& step) {
    pointer_.enter(step.place);
    name_.enter(step.name);
    if (visits_left_-- == 0) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = pointer_.shortened()},
                  "values are shared so often that listing them does not end",
                  "ckpt-inspect ls, hash and verify work on it");
    }
    if (const auto mapping = as_mapping(step.value)) {
      open_items(*mapping);
    } else if (step.value.is(Kind::List) && nesting_.is_entered(step.value)) {
      for (size_t i = step.value.size(); i-- > 0;) {
        open_.push_back({step.value[i], pointer_.child(i), name_.child(i)});
      }
    } else if (as_tensor(step.value)) {
      inventory_.tensors.push_back(next_tensor(pointer_.whole()));
      inventory_.tensors.back().file.clear();
      inventory_.tensors.back().key = name_.whole();
      inventory_.tensors.back().key_kind = Kind::Str;
    } else {
      inventory_.objects.push_back({"", name_.whole(), document_, step.value.id(), false});
    }
  }

  void open_items(const Value& mapping) {
    for (size_t i = mapping.item_count(); i-- > 0;) {
      const auto [key, value] = mapping.item(i);
      const std::string text = key_text(key);
      const bool is_typed = types_ == KeyTypes::Kept;
      open_.push_back(
          {value, pointer_.child(text), name_.child(is_typed ? typed_key_text(key) : text)});
    }
  }

  // The catalog lists tensors in the order of this walk, among those inside objects: two keys that
  // are one as text (1 and "1") keep a tensor each.
  const TensorEntry& next_tensor(const std::string& pointer) {
    const auto& tensors = catalog_.tensors;
    while (next_tensor_ < tensors.size() && tensors[next_tensor_].key != pointer) ++next_tensor_;
    if (next_tensor_ == tensors.size()) {
      throw Error(ErrorCode::NotFound, {.file = {}, .key = pointer}, "is not in the catalog");
    }
    return tensors[next_tensor_++];
  }

  const Catalog& catalog_;
  KeyTypes types_;
  std::shared_ptr<const Document> document_;
  uint64_t visits_left_;
  size_t next_tensor_ = 0;
  std::vector<Step> open_;
  PointerPath pointer_, name_;
  Nesting nesting_;
  Inventory inventory_;
};

// planner_data: flattened key -> path of names and indices; nullopt or None where the writer had
// none.
std::optional<Value> planner_data_of(const Checkpoint& checkpoint) {
  const ValueTree* metadata = checkpoint.dist_metadata();
  const auto fields = metadata != nullptr ? metadata->root().state() : std::nullopt;
  return fields && fields->is(Kind::Dict) ? fields->find("planner_data") : std::nullopt;
}

// `typed`: null where the types of keys are not asked for.
std::string pointer_of(const Value& planner_data, const std::string& key, const TypedPaths* typed) {
  const auto path = planner_data.find(key);
  if (!path || !path->is(Kind::Tuple)) {
    throw Error(ErrorCode::Corrupt, {".metadata", std::nullopt, key},
                "planner_data has no path for it");
  }
  const auto typed_path = typed != nullptr ? typed->find(key, *path) : std::nullopt;
  std::string pointer;
  for (size_t i = 0; i < path->size(); ++i) {
    pointer += pointer_step(typed_path ? typed_key_text((*typed_path)[i]) : key_text((*path)[i]));
  }
  return pointer;
}

// Keys that were saved as they are, with nothing flattened, have no paths.
bool has_flat_keys(const Checkpoint& checkpoint, const std::optional<Value>& planner_data) {
  if (checkpoint.convention() != nullptr) return false;
  return !planner_data || !planner_data->is(Kind::Dict) || planner_data->item_count() == 0;
}

Inventory dist_inventory(const Checkpoint& checkpoint, KeyTypes types) {
  const auto planner_data = planner_data_of(checkpoint);
  const bool is_flat = has_flat_keys(checkpoint, planner_data);
  if (!is_flat && (!planner_data || !planner_data->is(Kind::Dict))) {
    throw Error(ErrorCode::Unsupported, {".metadata", std::nullopt, ""},
                "holds no planner_data, with which names are compared across formats",
                "ckpt-inspect hash without --logical compares it under stored names");
  }
  std::optional<TypedPaths> typed;
  if (!is_flat && types == KeyTypes::Kept) typed.emplace(*checkpoint.dist_metadata());
  const auto place_of = [&](const std::string& key) {
    return is_flat ? pointer_step(key) : pointer_of(*planner_data, key, typed ? &*typed : nullptr);
  };
  Inventory inventory = native_inventory(checkpoint);
  for (TensorEntry& tensor : inventory.tensors) tensor.key = place_of(tensor.key);
  for (ObjectTree& object : inventory.objects) {
    object.key = place_of(object.key);
    object.lists_tensors = false;
  }
  return inventory;
}

Inventory flat_inventory(const Checkpoint& checkpoint) {
  Inventory inventory = native_inventory(checkpoint);
  for (TensorEntry& tensor : inventory.tensors) tensor.key = pointer_step(tensor.key);
  return inventory;
}

// What object entries of a torch.save file mean, by their keys. Two keys may have one text (1 and
// "1"): entries of one name are taken in order, as they were listed.
using ObjectsByKey = std::multimap<std::string, RootObject>;

ObjectsByKey objects_by_key(const Document& document) {
  ObjectsByKey objects;
  const Value root = document.tree.root();  // of a file that is listed as one object
  if (root.is(Kind::Dict)) objects.emplace("", RootObject{"", root.id()});
  for (const RootObject& object : root_objects(document)) objects.emplace(object.pointer, object);
  return objects;
}

// A document of the checkpoint, not owned: it lives as long as the checkpoint.
std::shared_ptr<const Document> borrow(const Document& document) {
  return {std::shared_ptr<const Document>(), &document};
}

}  // namespace

bool names_places(const Inventory& inventory) {
  const auto is_place = [](const auto& entry) {
    return entry.file.empty() && (entry.key.empty() || entry.key.starts_with('/'));
  };
  return std::ranges::any_of(inventory.tensors, is_place) ||
         std::ranges::any_of(inventory.objects, is_place);
}

bool join_places(Inventory& inventory) {
  std::vector<std::string> names;
  TextSet seen;
  const auto add = [&](const auto& entry) {
    const std::string& name = names.emplace_back(flat_name(entry.key));
    return !name.empty() && !name.starts_with('/') && seen.insert(name).second;
  };
  if (!std::ranges::all_of(inventory.tensors, add)) return false;
  if (!std::ranges::all_of(inventory.objects, add)) return false;
  auto name = names.begin();
  for (TensorEntry& tensor : inventory.tensors) tensor.key = std::move(*name++);
  for (ObjectTree& object : inventory.objects) object.key = std::move(*name++);
  return true;
}

bool has_typed_keys(const Checkpoint& checkpoint) {
  switch (row_of(checkpoint.catalog().format).keys) {
    case KeyStyle::Planned: return !TypedPaths(*checkpoint.dist_metadata()).empty();
    case KeyStyle::Flat: return false;
    case KeyStyle::Places: break;
  }
  return true;
}

Inventory plain_inventory(const Checkpoint& checkpoint, KeyTypes types) {
  const Catalog& catalog = checkpoint.catalog();
  switch (row_of(catalog.format).keys) {
    case KeyStyle::Planned: return dist_inventory(checkpoint, types);
    case KeyStyle::Flat: return flat_inventory(checkpoint);
    case KeyStyle::Places: break;
  }
  const Document* document = checkpoint.state();
  if (document == nullptr) {
    throw Error(ErrorCode::Unsupported, {checkpoint.shown_path()},
                "the files of this " + std::string(checkpoint.convention()->framework) +
                    " checkpoint have no names in common with other formats",
                "ckpt-inspect hash without --logical compares it under stored names");
  }
  return FileWalk(checkpoint, *document, types).run();
}

Inventory native_inventory(const Checkpoint& checkpoint) {
  const Catalog& catalog = checkpoint.catalog();
  Inventory inventory{catalog.tensors, {}};
  std::map<const Document*, ObjectsByKey> left;  // of those that were not taken
  for (const ObjectEntry& object : catalog.objects) {
    if (object.region) {
      auto document = std::make_shared<const Document>(checkpoint.read_object(object));
      const NodeId root = document->tree.root().id();
      inventory.objects.push_back({object.file, object.key, std::move(document), root, true});
      continue;
    }
    // A single file's entries name no file.
    const Document* document =
        object.file.empty() ? checkpoint.state() : checkpoint.document(object.file);
    if (document == nullptr) {
      throw Error(ErrorCode::NotFound, {object.file, std::nullopt, object.key}, "no such file");
    }
    const auto [of_document, is_new] = left.try_emplace(document);
    if (is_new) of_document->second = objects_by_key(*document);
    const auto found = of_document->second.extract(object.key);
    if (found.empty()) {
      throw Error(ErrorCode::NotFound, {object.file, std::nullopt, object.key}, "no such object");
    }
    inventory.objects.push_back({object.file, object.key, borrow(*document), found.mapped().node,
                                 false, found.mapped().key_kind});
  }
  return inventory;
}

}  // namespace ckpt
