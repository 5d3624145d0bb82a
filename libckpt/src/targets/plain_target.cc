#include "targets/plain_target.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/safetensors_target.h>
#include <ckpt/torch_dist_target.h>

#include "codec/pickle.h"
#include "codec/python_values.h"
#include "format/values/typed_key.h"

namespace ckpt {
namespace {

// What a target that holds elements alone cannot hold.
void note_besides(const PlainEntry& entry, std::string_view target,
                  std::vector<NotCarried>& notes) {
  if (entry.besides.empty()) return;
  notes.push_back({"attributes of " + entry.key,
                   entry.besides + "; " + std::string(target) + " holds plain tensors"});
}

class DistWriter {
 public:
  explicit DistWriter(PlainState state)
      : state_(std::move(state)), shared_("DCP", state_.not_carried) {
    spec_.chunk_index = true;
    spec_.planner_data.emplace();
    planner_ = spec_.planner_data->dict();
    spec_.planner_data->set_root(planner_);
    typed_paths_.set_root(typed_paths_.dict());
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
    if (typed_paths_.root().item_count() != 0) {
      spec_.typed_paths = pickle::write(typed_paths_, kTypedPathsProtocol);
    }
    return {Format::TorchDist, make_torch_dist_files(std::move(spec_)),
            std::move(state_.not_carried)};
  }

 private:
  // torch.distributed.checkpoint's own folders have no entry for it either.
  void note_empty(const PlainEntry& entry) {
    const bool is_in_list = std::ranges::any_of(entry.path, &PathStep::is_index);
    state_.not_carried.push_back(
        {pointer_of(entry.path),
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
    if (entry.has_typed_path && std::ranges::any_of(entry.path, is_not_as_it_reads)) {
      add_typed_path(entry);
    }
  }

  // A key that is not a string, or a string that reads like such a key.
  static bool is_not_as_it_reads(const PathStep& step) {
    return !step.is_index && (step.key || typed_text(step.text) != step.text);
  }

  void add_typed_path(const PlainEntry& entry) {
    ValueTree& tree = typed_paths_;
    std::vector<NodeId> steps;
    bool is_held = true;  // nor is what lies below a key that cannot be held
    for (const PathStep& step : entry.path) {
      is_held = is_held && (!step.key || TypedPaths::can_hold(*step.key));
      steps.push_back(step.key && is_held ? tree.copy(*step.key)
                      : step.is_index     ? tree.integer(std::stoll(step.text))
                                          : tree.str(step.text));
    }
    tree.set_item(tree.root().id(), tree.str(entry.key), tree.sequence(Kind::Tuple, steps));
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
  static constexpr int kTypedPathsProtocol = 4;

  DistSpec spec_;
  NodeId planner_ = kNoNode;
  ValueTree typed_paths_;
  SharedStorages shared_;
};

using pickle::as_mapping;
using pickle::holder_of_items;

class Unflattener {
 public:
  Unflattener(PlainState& state, const AddTensor& add)
      : state_(state), add_(add), types_(state_.entries) {
    for (const PlainEntry& entry : state_.entries) {
      index_count_ += static_cast<size_t>(std::ranges::count_if(entry.path, &PathStep::is_index));
    }
  }

  TargetArchive run(std::string name) {
    root_ = add_mapping("");
    for (const PlainEntry& entry : state_.entries) {
      if (entry.tensor && entry.tensor->cast) {
        note_besides(entry, "a tensor of another type", state_.not_carried);
      }
      place(entry, entry.tensor ? add_tensor(entry) : add_object(entry));
    }
    refuse_equal_keys();
    state_.not_carried.insert(state_.not_carried.end(), types_.losses().begin(),
                              types_.losses().end());
    return builder_.finish(std::move(name), root_);
  }

 private:
  NodeId add_tensor(const PlainEntry& entry) {
    if (!entry.besides.empty() && !entry.tensor->cast) return add_object(entry);
    return add_(builder_, entry);
  }

  NodeId add_object(const PlainEntry& entry) {
    return builder_.carry(entry.document->tree.value(entry.node), *entry.document);
  }

  // Walks the path, making a mapping before a key and a list before an index.
  void place(const PlainEntry& entry, NodeId value) {
    NodeId container = root_;
    std::string at;
    for (size_t i = 0; i < entry.path.size(); ++i) {
      const bool last = i + 1 == entry.path.size();
      MappingTypes::enter(at, entry.path[i]);
      const Next next{last ? value : kNoNode, !last && entry.path[i + 1].is_index, at};
      container = step(entry.key, container, entry.path[i], next);
    }
  }

  // What a step leads to: the value, or a container for the step after.
  struct Next {
    NodeId value;
    bool is_list;
    const std::string& place;
  };

  // An empty one, of the class that the source's has, with its attributes.
  NodeId add_mapping(const std::string& place) {
    ValueTree& tree = builder_.tree();
    const auto source = types_.at(place);
    mappings_.push_back(kNoNode);
    NodeId& mapping = mappings_.back();
    if (!source || !source->is(Kind::Object)) return mapping = tree.dict();
    const bool is_counter = source->args().size() == 1 && source->args()[0].is(Kind::Dict);
    const NodeId args =
        is_counter ? tree.tuple({tree.dict()}) : builder_.carry(source->args(), *state_.keys);
    const auto kwargs = source->kwargs();
    mapping = tree.object(source->construction(), tree.copy(source->callable()), args,
                          kwargs ? tree.copy(*kwargs) : kNoNode);
    if (const auto state = source->state()) {
      tree.set_state(mapping, builder_.carry(*state, *state_.keys));
    }
    return mapping;
  }

  uint64_t count_items() {
    uint64_t count = 0;
    for (const NodeId mapping : mappings_) {
      count += as_mapping(builder_.tree().value(mapping))->item_count();
    }
    return count;
  }

  // Those of one mapping of the source are not equal.
  void refuse_equal_keys() {
    const uint64_t count = count_items();
    builder_.tree().merge_equal_keys();
    if (count_items() == count) return;
    throw Error(ErrorCode::InvalidArgument, {},
                "--rename puts keys into one mapping that Python takes for equal, like 1 and True");
  }

  // Sets the value at `at`, or returns the container there, made where it is missing.
  NodeId step(const std::string& key, NodeId container, const PathStep& at, Next next) {
    ValueTree& tree = builder_.tree();
    const Value holder = tree.value(container);
    NodeId& slot = slots_[std::to_string(container) + typed_step(at)];
    if (slot != 0) {
      if (next.value != kNoNode) corrupt(key, "another key has the same path");
      if (values_.contains(slot - 1)) corrupt(key, "its path leads into the value of another key");
      return slot - 1;
    }
    if (next.value != kNoNode) values_.insert(next.value);
    slot = (next.value != kNoNode ? next.value
            : next.is_list        ? tree.list()
                                  : add_mapping(next.place)) +
           1;
    if (at.is_index && holder.is(Kind::List)) {
      set_element(key, container, at.text, slot - 1);
    } else if (!at.is_index && !holder.is(Kind::List)) {
      const NodeId name = at.key ? builder_.carry(*at.key, *state_.keys) : tree.str(at.text);
      tree.set_item(holder_of_items(holder), name, slot - 1);
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

  PlainState& state_;
  const AddTensor& add_;
  MappingTypes types_;
  ArchiveBuilder builder_;
  std::vector<NodeId> mappings_;  // of ours
  TextMap<NodeId> slots_;         // container and step -> child + 1
  std::set<NodeId> values_;       // children that are not containers of ours
  size_t index_count_ = 0;        // no list is longer but for what was left out of it
  NodeId root_ = kNoNode;
};

constexpr std::string_view kValue = "a value", kMapping = "a mapping", kList = "a list";

// Throws Unsupported where flattened entries cannot be put back in the places that their paths
// name: one in another's place, or below it, or a list where another path says mapping.
class Places {
 public:
  void add(const PlainEntry& entry) {
    std::string prefix;
    for (size_t i = 0; i < entry.path.size(); ++i) {
      take(entry, prefix, entry.path[i].is_index ? kList : kMapping);
      const std::string& text = entry.path[i].text;
      prefix += std::to_string(text.size()) + ':' + text;
    }
    if (!values_.insert(prefix).second) refuse(entry, kValue, kValue);
    take(entry, prefix, kValue);
  }

 private:
  void take(const PlainEntry& entry, const std::string& prefix, std::string_view place) {
    const std::string_view known = places_.try_emplace(prefix, place).first->second;
    if (known != place) refuse(entry, place, known);
  }

  [[noreturn]] static void refuse(const PlainEntry& entry, std::string_view wanted,
                                  std::string_view known) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = entry.key},
                "its path needs " + std::string(wanted) + " where another key's has " +
                    std::string(known) + ", so the two could not be read back",
                "--rename gives one of them another name");
  }

  TextMap<std::string_view> places_;
  TextSet values_;
};

}  // namespace

Target plain_torch_dist_target(PlainState state, const TargetSpec&) {
  Places places;
  for (const PlainEntry& entry : state.entries) {
    if (!entry.is_empty_mapping) places.add(entry);
  }
  return DistWriter(std::move(state)).run();
}

Target plain_safetensors_target(PlainState state, const TargetSpec& target) {
  SafetensorsSpec spec;
  spec.metadata = std::move(state.header_metadata);
  spec.as_folder = target.as_folder;
  spec.file_bytes_max = target.file_bytes_max;
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

TargetArchive nested_archive(PlainState& state, std::string name, const AddTensor& add) {
  return Unflattener(state, add).run(std::move(name));
}

Target plain_torch_target(PlainState state, const TargetSpec&) {
  SharedStorages shared("the new file", state.not_carried);
  for (const PlainEntry& entry : state.entries) {
    if (entry.tensor) shared.note(entry);
  }
  TargetFile file;
  file.archives.push_back(
      nested_archive(state, "archive", [](ArchiveBuilder& builder, const PlainEntry& entry) {
        return builder.add_tensor(entry.tensor->dtype, entry.tensor->shape, whole_of(entry));
      }));
  return {Format::Torch, {std::move(file)}, std::move(state.not_carried), 0, {}};
}

}  // namespace ckpt
