#include "target/plain_target.h"

#include <algorithm>
#include <set>

#include <ckpt/archive_builder.h>
#include <ckpt/error.h>
#include <ckpt/safetensors_target.h>
#include <ckpt/torch_dist_target.h>

#include "base/text.h"
#include "base/text_map.h"

namespace ckpt {
namespace {

// Tensors that view one storage of a torch.save file become copies; says so.
class SharedStorages {
 public:
  SharedStorages(std::string_view target, std::vector<NotCarried>& notes)
      : target_(target), notes_(notes) {}

  void note(const PlainEntry& entry) {
    const StorageRegion& region = entry.tensor->chunks.front().region;
    const std::string place =
        std::to_string(region.file) + "@" + std::to_string(region.bytes.offset_bytes);
    if (entry.tensor->chunks.size() > 1 || region.bytes.count_bytes == 0) return;
    if (places_.insert(place).second) return;
    notes_.push_back({"storage of " + entry.key,
                      "shared with another tensor; " + target_ + " stores a copy of each",
                      std::nullopt, true});
  }

 private:
  std::string target_;
  std::vector<NotCarried>& notes_;
  TextSet places_;
};

// What a target that holds elements alone cannot hold.
void note_besides(const PlainEntry& entry, std::string_view target,
                  std::vector<NotCarried>& notes) {
  if (entry.besides.empty()) return;
  notes.push_back({"attributes of " + entry.key,
                   entry.besides + "; " + std::string(target) + " holds plain tensors"});
}

TensorSource whole_of(const PlainEntry& entry) {
  return {entry.tensor, whole(entry.tensor->shape)};
}

// --- a DCP folder
// ------------------------------------------------------------------------------------

class DistWriter {
 public:
  explicit DistWriter(PlainState state)
      : state_(std::move(state)), shared_("DCP", state_.not_carried) {
    spec_.chunk_index = true;
    spec_.planner_data.emplace();
    planner_ = spec_.planner_data->dict();
    spec_.planner_data->set_root(planner_);
  }

  Target run() {
    for (const PlainEntry& entry : state_.entries) {
      if (entry.is_empty_mapping) {
        note_empty(entry);
        continue;
      }
      add_path(entry);
      if (entry.tensor) {
        add_tensor(entry);
      } else {
        add_object(entry);
      }
    }
    return {Format::TorchDist,
            make_torch_dist_files(std::move(spec_)),
            std::move(state_.not_carried),
            0,
            {}};
  }

 private:
  // torch.distributed.checkpoint's own folders have no entry for it either.
  void note_empty(const PlainEntry& entry) {
    const bool is_in_list = std::ranges::any_of(entry.path, &PathStep::is_index);
    state_.not_carried.push_back(
        {pointer_of(entry),
         std::string("an empty mapping, which DCP does not store") +
             (is_in_list ? "; a list that contains it is loaded shorter, or with None in its place"
                         : ""),
         entry.key});
  }

  void add_path(const PlainEntry& entry) {
    ValueTree& tree = *spec_.planner_data;
    std::vector<NodeId> steps;
    for (const PathStep& step : entry.path) {
      steps.push_back(step.is_index ? tree.integer(std::stoll(step.text)) : tree.str(step.text));
    }
    tree.set_item(planner_, tree.str(entry.key), tree.sequence(Kind::Tuple, steps));
  }

  void add_tensor(const PlainEntry& entry) {
    shared_.note(entry);
    note_besides(entry, "DCP", state_.not_carried);
    const TensorEntry& tensor = *entry.tensor;
    const auto index = static_cast<uint32_t>(spec_.tensors.size());
    spec_.tensors.push_back({entry.key, tensor.dtype, tensor.shape, entry.requires_grad});
    spec_.chunks.push_back({index, 0, whole(tensor.shape), whole_of(entry)});
  }

  void add_object(const PlainEntry& entry) {
    ArchiveBuilder builder;
    const NodeId root = builder.carry(entry.document->tree.value(entry.node), *entry.document);
    TargetArchive archive = builder.finish("archive", root);
    spec_.objects.push_back({entry.key, std::get<std::shared_ptr<const ValueTree>>(archive.content),
                             std::move(archive.records), 0});
  }

  PlainState state_;
  DistSpec spec_;
  NodeId planner_ = kNoNode;
  SharedStorages shared_;
};

// --- a torch.save file
// -------------------------------------------------------------------------------

class Unflattener {
 public:
  explicit Unflattener(PlainState state) : state_(std::move(state)) {
    for (const PlainEntry& entry : state_.entries) count_index(entry);
  }

  Target run() {
    root_ = builder_.tree().dict();
    SharedStorages shared("the new file", state_.not_carried);
    for (const PlainEntry& entry : state_.entries) {
      if (entry.tensor) shared.note(entry);
      place(entry, entry.tensor ? add_tensor(entry) : add_object(entry));
    }
    TargetFile file;
    file.archives.push_back(builder_.finish("archive", root_));
    return {Format::Torch, {std::move(file)}, std::move(state_.not_carried), 0, {}};
  }

 private:
  // A list is at most as long as there are entries: what was left out of it counts, too.
  void count_index(const PlainEntry& entry) {
    for (const PathStep& step : entry.path) {
      if (step.is_index) ++index_count_;
    }
  }

  NodeId add_tensor(const PlainEntry& entry) {
    if (!entry.besides.empty()) return add_object(entry);
    return builder_.add_tensor(entry.tensor->dtype, entry.tensor->shape, whole_of(entry));
  }

  NodeId add_object(const PlainEntry& entry) {
    return builder_.carry(entry.document->tree.value(entry.node), *entry.document);
  }

  // Walks the path, making a dict before a string step and a list before an index.
  void place(const PlainEntry& entry, NodeId value) {
    NodeId container = root_;
    for (size_t i = 0; i < entry.path.size(); ++i) {
      const bool last = i + 1 == entry.path.size();
      const Next next{last ? value : kNoNode, !last && entry.path[i + 1].is_index};
      container = step(entry.key, container, entry.path[i], next);
    }
  }

  // What a step leads to: the value, or a container for the step after.
  struct Next {
    NodeId value;
    bool is_list;
  };

  // Sets the value at `at`, or returns the container there, made where it is missing.
  NodeId step(const std::string& key, NodeId container, const PathStep& at, Next next) {
    ValueTree& tree = builder_.tree();
    const Value holder = tree.value(container);
    NodeId& slot = slots_[std::to_string(container) + (at.is_index ? "#" : "'") + at.text];
    if (slot != 0) {
      if (next.value != kNoNode) corrupt(key, "another key has the same path");
      if (values_.contains(slot - 1)) corrupt(key, "its path leads into the value of another key");
      return slot - 1;
    }
    if (next.value != kNoNode) values_.insert(next.value);
    slot = (next.value != kNoNode ? next.value : next.is_list ? tree.list() : tree.dict()) + 1;
    if (at.is_index && holder.is(Kind::List)) {
      set_element(key, container, at.text, slot - 1);
    } else if (!at.is_index && holder.is(Kind::Dict)) {
      tree.set_item(container, tree.str(at.text), slot - 1);
    } else {
      corrupt(key, "its path treats a list as a dict, or a dict as a list");
    }
    return slot - 1;
  }

  // Keys come in the order of the ranks that wrote them: a list is filled with None until its turn.
  void set_element(const std::string& key, NodeId list, const std::string& text, NodeId value) {
    const auto number = number_in<size_t>(text);
    if (!number || *number >= kListMax) corrupt(key, "its path has the invalid list index " + text);
    const size_t index = *number;
    if (index >= index_count_ + kHolesMax) {
      corrupt(key, "its path has list index " + text +
                       ", but the checkpoint has too few list elements for it");
    }
    ValueTree& tree = builder_.tree();
    while (tree.value(list).size() <= index) tree.append(list, tree.none());
    tree.replace(list, index, value);
  }

  [[noreturn]] static void corrupt(const std::string& key, std::string problem) {
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = key}, std::move(problem));
  }

  static constexpr size_t kListMax = size_t{1} << 31;
  static constexpr size_t kHolesMax = size_t{1} << 16;  // elements that were left out

  PlainState state_;
  ArchiveBuilder builder_;
  TextMap<NodeId> slots_;    // container and step -> child + 1
  std::set<NodeId> values_;  // children that are not containers of ours
  size_t index_count_ = 0;
  NodeId root_ = kNoNode;
};

}  // namespace

Target plain_torch_dist_target(PlainState state, const TargetSpec&) {
  check_places(state);
  return DistWriter(std::move(state)).run();
}

Target plain_torch_target(PlainState state, const TargetSpec&) {
  return Unflattener(std::move(state)).run();
}

Target plain_safetensors_target(PlainState state, const TargetSpec& target) {
  SafetensorsSpec spec;
  spec.metadata = std::move(state.header_metadata);
  spec.as_folder = target.as_folder;
  SharedStorages shared("safetensors", state.not_carried);
  for (PlainEntry& entry : state.entries) {
    if (!entry.tensor) {
      state.not_carried.push_back(
          {entry.key, "not a tensor; safetensors stores only tensors", entry.key});
      continue;
    }
    shared.note(entry);
    note_besides(entry, "safetensors", state.not_carried);
    spec.tensors.push_back({entry.key, whole_of(entry)});
  }
  return make_safetensors_target(std::move(spec), std::move(state.not_carried));
}

}  // namespace ckpt
