// A torch.save file and a DCP folder of the same state dict. The rules are those of
// torch.distributed.checkpoint (flatten_state_dict, unflatten_state_dict): mappings are always
// entered, lists where they hold a tensor or something that is entered, tuples never; keys are
// joined by '.', and planner_data says how to split them again.
#include "format/plain_target.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <ckpt/archive_builder.h>
#include <ckpt/error.h>

#include "format/json_pointer.h"
#include "format/nesting.h"

namespace ckpt {
namespace {

constexpr size_t kDepthMax = 1000;  // nesting of a state dict; Python's own recursion limit

struct PathItem {
  std::string text;
  bool is_index;
};

std::string storage_identity(const TensorEntry& tensor) {
  const StorageRegion& region = tensor.chunks.front().region;
  return std::to_string(region.file) + "@" + std::to_string(region.bytes.offset_bytes);
}

// --- torch.save file -> DCP
// --------------------------------------------------------------------------

class Flattener {
 public:
  Flattener(const Checkpoint& source, const std::string& file)
      : source_(source), file_(file), document_(*source.document(file)) {}

  Target run() {
    const Value root = document_.tree.root();
    if (!as_mapping(root)) {
      throw Error(ErrorCode::Unsupported, {.file = file_, .key = {}},
                  "the file holds no state dict (no mapping at its root)");
    }
    spec_.chunk_index = true;
    spec_.planner_data.emplace();
    planner_ = spec_.planner_data->dict();
    spec_.planner_data->set_root(planner_);
    enter_mapping(*as_mapping(root), "");
    note_what_mappings_lose(root, "");
    Target target{Format::TorchDist, make_torch_dist_files(spec_), std::move(not_carried_), {}};
    return target;
  }

 private:
  void enter_mapping(const Value& mapping, const std::string& pointer) {
    for (size_t i = 0; i < mapping.item_count(); ++i) {
      const auto [key, value] = mapping.item(i);
      const std::string text = key_text(key);
      if (!key.is(Kind::Str)) note("key " + pointer + "/" + text, "becomes a string in DCP");
      enter(value, {text, false}, pointer + "/" + text);
    }
  }

  void note_what_mappings_lose(const Value& mapping, const std::string& pointer) {
    if (!mapping.is(Kind::Object)) return;
    note(pointer.empty() ? "/" : pointer,
         std::string(mapping.callable().name()) + " becomes a dict in DCP" +
             (mapping.state() ? ", and its attributes are lost" : ""));
  }

  void enter(const Value& value, PathItem item, const std::string& pointer) {
    if (path_.size() >= kDepthMax) {
      throw Error(ErrorCode::Unsupported, {.file = file_, .key = pointer}, "nested too deeply");
    }
    path_.push_back(std::move(item));
    if (const auto mapping = as_mapping(value)) {
      note_what_mappings_lose(value, pointer);
      enter_mapping(*mapping, pointer);
    } else if (value.is(Kind::List) && nesting_.is_entered(value)) {
      for (size_t i = 0; i < value.size(); ++i) {
        enter(value[i], {std::to_string(i), true}, pointer + "/" + std::to_string(i));
      }
    } else if (const auto view = as_tensor(value)) {
      add_tensor(view->requires_grad);
    } else {
      add_object(value);
    }
    path_.pop_back();
  }

  std::string add_key() {
    std::string key;
    std::vector<NodeId> steps;
    for (const PathItem& item : path_) {
      key += (key.empty() && steps.empty() ? "" : ".") + item.text;
      steps.push_back(item.is_index ? spec_.planner_data->integer(std::stoll(item.text))
                                    : spec_.planner_data->str(item.text));
    }
    if (!keys_.insert(key).second) {
      throw Error(ErrorCode::Unsupported, {.file = file_, .key = key},
                  "two values have this key once their paths are joined by '.'");
    }
    spec_.planner_data->set_item(planner_, spec_.planner_data->str(key),
                                 spec_.planner_data->sequence(Kind::Tuple, steps));
    return key;
  }

  void add_tensor(bool requires_grad) {
    const TensorEntry& tensor = next_tensor();
    const std::string key = add_key();
    auto entry = std::make_shared<const TensorEntry>(tensor);
    if (!storages_.insert(storage_identity(tensor)).second) {
      note("storage of " + key, "shared with another tensor; DCP holds a copy for each");
    }
    spec_.chunks.push_back({key,
                            tensor.dtype,
                            tensor.shape,
                            whole(tensor.shape),
                            {entry, whole(tensor.shape)},
                            0,
                            requires_grad});
  }

  // The catalog lists the file's tensors in the order in which this class meets them, but also
  // those inside objects, which are skipped.
  const TensorEntry& next_tensor() {
    const auto& tensors = source_.catalog().tensors;
    const std::string pointer = pointer_of_path();
    while (tensors[next_tensor_].key != pointer) {
      if (++next_tensor_ == tensors.size()) {
        throw Error(ErrorCode::Corrupt, {.file = file_, .key = pointer}, "not in the catalog");
      }
    }
    return tensors[next_tensor_++];
  }

  std::string pointer_of_path() const {
    std::string pointer;
    for (const PathItem& item : path_) pointer += pointer_step(item.text);
    return pointer;
  }

  void add_object(const Value& value) {
    ArchiveBuilder builder;
    const NodeId root = builder.carry(value, document_);
    TargetArchive archive = builder.finish("archive", root);
    spec_.objects.push_back(
        {add_key(), std::get<1>(std::move(archive.content)), std::move(archive.records), 0});
  }

  void note(std::string what, std::string reason) {
    not_carried_.push_back({std::move(what), std::move(reason)});
  }

  const Checkpoint& source_;
  const std::string& file_;
  const Document& document_;
  DistSpec spec_;
  NodeId planner_ = kNoNode;
  std::vector<PathItem> path_;
  Nesting nesting_;
  std::unordered_set<std::string> keys_, storages_;
  size_t next_tensor_ = 0;
  std::vector<NotCarried> not_carried_;
};

// --- DCP -> torch.save file
// --------------------------------------------------------------------------

class Unflattener {
 public:
  explicit Unflattener(const Checkpoint& source) : source_(source) {
    const auto planner = metadata().find("planner_data");
    if (!planner || !planner->is(Kind::Dict)) return;  // None: the keys are not nested
    for (size_t i = 0; i < planner->item_count(); ++i) {
      const auto [key, path] = planner->item(i);
      if (key.is(Kind::Str)) paths_.emplace(key.text(), path);
    }
  }

  Target run() {
    root_ = builder_.tree().dict();
    const Value keys = metadata().at("state_dict_metadata");
    for (size_t i = 0; i < keys.item_count(); ++i) {
      add(std::string(keys.item(i).first.text()));
    }
    TargetFile file;
    file.archives.push_back(builder_.finish("archive", root_));
    return {Format::Torch, {std::move(file)}, {}, {}};
  }

 private:
  Value metadata() const { return *source_.dist_metadata()->root().state(); }

  void add(const std::string& key) {
    const TensorEntry* tensor = source_.catalog().find_tensor(key);
    const NodeId value = tensor ? add_tensor(*tensor) : add_object(key);
    const auto path = paths_.find(key);
    if (path == paths_.end()) {
      if (!paths_.empty()) corrupt(key, "planner_data has no path for it");
      return builder_.tree().set_item(root_, builder_.tree().str(key), value);
    }
    place(key, path->second, value);
  }

  NodeId add_tensor(const TensorEntry& tensor) {
    auto entry = std::make_shared<const TensorEntry>(tensor);
    return builder_.add_tensor(tensor.dtype, tensor.shape,
                               TensorSource{entry, whole(tensor.shape)});
  }

  NodeId add_object(const std::string& key) {
    objects_.push_back(
        std::make_unique<Document>(source_.read_object(*source_.catalog().find_object(key))));
    return builder_.carry(objects_.back()->tree.root(), *objects_.back());
  }

  // Walks the path, making a dict before a string step and a list before an index.
  void place(const std::string& key, const Value& path, NodeId value) {
    if (!path.is(Kind::Tuple) || path.size() == 0) corrupt(key, "planner_data gives no path");
    if (joined(path) != key) corrupt(key, "planner_data splits it into " + joined(path));
    NodeId container = root_;
    for (size_t i = 0; i < path.size(); ++i) {
      const bool last = i + 1 == path.size();
      const Next next{last ? value : kNoNode, !last && path[i + 1].is(Kind::Int)};
      container = step(key, container, path[i], next);
    }
  }

  static std::string joined(const Value& path) {
    std::string text;
    for (size_t i = 0; i < path.size(); ++i) text += (i ? "." : "") + key_text(path[i]);
    return text;
  }

  // What a step leads to: the value, or a container for the step after.
  struct Next {
    NodeId value;
    bool is_list;
  };

  // Sets the value at `at`, or returns the container there, made where it is missing.
  NodeId step(const std::string& key, NodeId container, const Value& at, Next next) {
    ValueTree& tree = builder_.tree();
    const Value holder = tree.value(container);
    NodeId& slot =
        slots_[std::to_string(container) + (at.is(Kind::Int) ? "#" : "'") + key_text(at)];
    if (slot != 0) {
      if (next.value != kNoNode) corrupt(key, "planner_data puts two values in one place");
      return slot - 1;
    }
    slot = (next.value != kNoNode ? next.value : next.is_list ? tree.list() : tree.dict()) + 1;
    if (at.is(Kind::Int) && holder.is(Kind::List)) {
      set_element(key, container, at.as_int(), slot - 1);
    } else if (at.is(Kind::Str) && holder.is(Kind::Dict)) {
      tree.set_item(container, tree.str(at.text()), slot - 1);
    } else {
      corrupt(key, "planner_data mixes lists and dicts");
    }
    return slot - 1;
  }

  // Keys come in the order of the ranks that wrote them: a list is filled with None until its turn.
  void set_element(const std::string& key, NodeId list, int64_t index, NodeId value) {
    ValueTree& tree = builder_.tree();
    if (index < 0 || static_cast<uint64_t>(index) >= paths_.size()) {
      corrupt(key, "planner_data names list element " + std::to_string(index));
    }
    const auto position = static_cast<size_t>(index);
    while (tree.value(list).size() <= position) tree.append(list, tree.none());
    tree.replace(list, position, value);
  }

  [[noreturn]] static void corrupt(const std::string& key, std::string problem) {
    throw Error(ErrorCode::Corrupt, {.file = ".metadata", .key = key}, std::move(problem));
  }

  const Checkpoint& source_;
  ArchiveBuilder builder_;
  std::unordered_map<std::string, Value> paths_;
  std::unordered_map<std::string, NodeId> slots_;   // container and step -> child + 1
  std::vector<std::unique_ptr<Document>> objects_;  // alive while storages are told apart by them
  NodeId root_ = kNoNode;
};

}  // namespace

Target plain_torch_dist_target(const Checkpoint& source) {
  return Flattener(source, source.catalog().files.at(0).path).run();
}

Target plain_torch_target(const Checkpoint& source) { return Unflattener(source).run(); }

}  // namespace ckpt
