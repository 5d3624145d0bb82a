#include "targets/plain_target.h"

#include <algorithm>

#include <ckpt/archive_builder.h>
#include <ckpt/safetensors_target.h>
#include <ckpt/torch_dist_target.h>

#include "codec/pickle.h"
#include "format/values/typed_key.h"
#include "targets/shared_storages.h"

namespace ckpt {
namespace {

// What a target that holds elements alone cannot hold.
void note_besides(const PlainEntry& entry, std::string_view target,
                  std::vector<NotCarried>& notes) {
  if (entry.besides.empty()) return;
  notes.push_back({"attributes of " + entry.key,
                   entry.besides + "; " + std::string(target) + " holds plain tensors"});
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

}  // namespace

Target plain_torch_dist_target(PlainState state, const TargetSpec&) {
  check_places(state);
  return DistWriter(std::move(state)).run();
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
