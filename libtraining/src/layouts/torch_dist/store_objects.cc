// Objects of a torch_dist folder.
#include "layouts/torch_dist/store_objects.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ckpt/archive_builder.h>

#include "args/common_state.h"
#include "grid/whole_states.h"
#include "layouts/job/filing_hooks.h"
#include "layouts/parts/stacked_layers.h"
#include "layouts/parts/store_errors.h"
#include "layouts/torch_dist/readers.h"
#include "state/state_values.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

using store_errors::corrupt;
using store_errors::unsupported;

constexpr std::string_view kRngKey = "rng_state";

class ObjectReader {
 public:
  ObjectReader(const StoreObjects& from, CommonBuilder& common, TrainingState& state)
      : from_(from), rules_(from.rules), common_(common), state_(state) {}

  void run() {
    const std::vector<ckpt::ObjectEntry>& objects = from_.catalog.objects;
    check_object_shards(objects, rules_);
    for (size_t i = 0; i < objects.size(); ++i) {
      const ckpt::ObjectEntry& object = objects[i];
      if (!object.file.empty() || object.key == kCommonStateKey ||
          store_hooks_of(object.key) != nullptr) {
        continue;
      }
      const auto shard = parse_object_key(object.key);
      if (!shard) unsupported(object.key, "this object is unknown");
      if (shard->key == kRngKey) {
        read_rng(object, *shard);
      } else if (is_extra_state(shard->key)) {
        read_extra_state(i, *shard);
      } else if (shard->key.starts_with("rerun_state_machine")) {
        state_.rank_objects.emplace_back(
            object.key, std::make_shared<const Document>(from_.source.read_object(object)));
      } else {
        unsupported(object.key, "this object is unknown");
      }
    }
    merge_expert_states();
  }

 private:
  // Of the ranks of a pipeline stage and tensor parallel rank; of Megatron-Core 0.16, where experts
  // are split, of one data-parallel rank of these. A list of one object, which is the list over
  // data-parallel ranks.
  void read_rng(const ckpt::ObjectEntry& object, const ObjectShard& shard) {
    const ParallelSizes& sizes = state_.grid.sizes;
    std::vector<uint32_t> counts = {sizes.pipeline_parallel, sizes.tensor_parallel};
    // A linked folder has those of an old grid, too, which nobody asks for.
    const std::string own = object_key({std::string(kRngKey), {0, 0}, counts});
    if (shard.counts != counts && from_.catalog.find_object(own) != nullptr) return;
    if (shard.counts.size() == 3 && sizes.expert_parallel > 1) counts.push_back(sizes.dp_cp());
    const bool is_rank =
        shard.counts == counts &&
        std::ranges::equal(shard.indices, counts, [](auto i, auto n) { return i < n; });
    if (!is_rank) {
      corrupt(object.key, "is not of the pipeline and tensor parallel ranks that args describe");
    }
    auto document = std::make_shared<const Document>(from_.source.read_object(object));
    const Value rng = only_object(*document, object.key);
    const uint32_t data = counts.size() == 3 ? shard.indices[2] : 0;
    const uint32_t expert = data / sizes.context_parallel % sizes.expert_parallel;
    const std::array place = {shard.indices[1], shard.indices[0], expert};
    const auto [first, is_new] = rngs_.try_emplace(place, document);
    if (is_new) {
      state_.rng_states.push_back(
          {place[0], place[1], expert, common_.carry(rng, std::move(document))});
    } else if (first_difference(only_object(*first->second, object.key), rng)) {
      unsupported(object.key, "the random states of data-parallel ranks differ");
    }
  }

  // Where it stands in the tensors' key, if in one.
  std::optional<ShardedName> sharded_object(const ObjectShard& shard) const {
    const StackedAxes axes = stacked_axes(shard.key, rules_);
    ShardedName sharded{shard.key};
    if (axes.count() == 0) return sharded;
    std::vector<uint32_t> counts;
    if (axes.layer) counts.push_back(stack_rules(shard.key, rules_).layers);
    if (axes.expert) counts.push_back(rules_.expert_count);
    if (shard.counts != counts) return std::nullopt;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (shard.indices[i] >= counts[i]) return std::nullopt;
    }
    if (axes.layer) sharded.layer = shard.indices.front();
    if (axes.expert) sharded.expert = shard.indices.back();
    return sharded;
  }

  // Of layers that the rules do not know, as an encoder's: only the key tells one from the other.
  static bool is_of_unknown_stack(const ShardedName& sharded, const ObjectShard& shard) {
    return !sharded.layer && !sharded.expert &&
           std::ranges::any_of(shard.counts, [](uint32_t count) { return count != 1; });
  }

  void read_extra_state(size_t object, const ObjectShard& shard) {
    const std::string& key = from_.catalog.objects[object].key;
    const auto sharded = sharded_object(shard);
    if (!sharded) corrupt(key, "is not one of the layers and experts that args describe");
    const std::string name =
        is_of_unknown_stack(*sharded, shard) ? key : state_dict_name(*sharded, rules_);
    auto document = std::make_shared<Document>(from_.extra_states.take(object));
    if (!from_.are_values) document->tree.set_root(only_object(*document, key).id());
    if (is_state_of_experts(name) && sharded->expert) {  // else it is of all, as one rank has it
      return add_expert_state(name, *sharded, std::move(document));
    }
    ModelEntry entry{ModelEntry::What::ExtraState, name, 0, std::nullopt};
    if (!document->tree.root().is_none()) {
      entry.object = static_cast<uint32_t>(state_.extra_states.size());
      state_.extra_states.push_back(std::move(document));
    }
    state_.model.push_back(std::move(entry));
  }

  void add_expert_state(const std::string& name, const ShardedName& sharded,
                        std::shared_ptr<const Document> document) {
    auto& states = state_.expert_states[name];
    if (states.empty()) {
      state_.model.push_back({ModelEntry::What::ExtraState, name, 0, std::nullopt});
      states.resize(rules_.expert_count);
    }
    states[*sharded.expert] = std::move(document);
  }

  // Empty ones are alike, so that one stands for all.
  void merge_expert_states() {
    for (ModelEntry& entry : state_.model) {
      const auto found = state_.expert_states.find(entry.name);
      if (found == state_.expert_states.end()) continue;
      if (std::ranges::any_of(found->second, [](const auto& one) { return holds_bytes(*one); })) {
        continue;
      }
      if (!found->second[0]->tree.root().is_none()) {
        entry.object = static_cast<uint32_t>(state_.extra_states.size());
        state_.extra_states.push_back(found->second[0]);
      }
      state_.expert_states.erase(found);
    }
  }

  const StoreObjects& from_;
  const KeyRules& rules_;
  CommonBuilder& common_;
  TrainingState& state_;
  std::map<std::array<uint32_t, 3>, std::shared_ptr<const Document>> rngs_;  // by TP, PP, EP rank
};

constexpr size_t kObjectsReadAheadMin = 256;

bool is_of_module(const ckpt::ObjectEntry& object) {
  if (!object.file.empty() || store_hooks_of(object.key) != nullptr) return false;
  const auto shard = parse_object_key(object.key);
  return shard && is_extra_state(shard->key);
}

constexpr std::string_view kPrefix = "rng_state.", kTrackers = "rng_tracker_states.";
constexpr const char* kStates[] = {"random_rng_state", "np_rng_state", "torch_rng_state",
                                   "cuda_rng_state"};

// Behind the place in the model and that among the data-parallel ranks; nullopt for others than the
// first's.
std::optional<std::string> state_of_first(std::string_view key) {
  key.remove_prefix(kPrefix.size());
  for (const std::string_view first : {"(0, 0).0.", "0."}) {
    if (key.starts_with(first)) return std::string(key.substr(first.size()));
  }
  return std::nullopt;
}

bool is_run_of_bytes(const TensorEntry& tensor) {
  return tensor.dtype == DType::UInt8 && tensor.shape.size() == 1 && tensor.chunks.size() == 1 &&
         !tensor.chunks[0].view && tensor.chunks[0].payload_offset_bytes == 0;
}

}  // namespace

ExtraStatesAhead::ExtraStatesAhead(const OpenedTraining& source, const ckpt::Catalog& catalog)
    : source_(source), catalog_(catalog), objects_(catalog.objects.size()) {
  // Deferred where no thread can be had, or is worth it: then all is left.
  const bool has_many = objects_.size() >= kObjectsReadAheadMin;
  const auto policy = has_many ? std::launch::async | std::launch::deferred : std::launch::deferred;
  reading_ = std::async(policy, [this] { read_what_is_left(); });
}

void ExtraStatesAhead::read_what_is_left() {
  for (size_t i = next_++; i < objects_.size(); i = next_++) {
    const ckpt::ObjectEntry& object = catalog_.objects[i];
    if (!is_of_module(object)) continue;
    try {
      objects_[i].document = source_.read_object(object);
    } catch (...) {
      objects_[i].error = std::current_exception();
    }
  }
}

Document ExtraStatesAhead::take(size_t object) {
  if (reading_.valid()) {
    read_what_is_left();
    reading_.get();
  }
  ReadObject& read = objects_.at(object);
  if (read.error) std::rethrow_exception(read.error);
  return std::exchange(read.document, std::nullopt).value();
}

void read_store_objects(const StoreObjects& from, CommonBuilder& common, TrainingState& state) {
  ObjectReader(from, common, state).run();
}

// rng_state.(PP, TP).0.STATE of fsdp_dtensor, rng_state.0.STATE of torch_dcp: tensors of bytes and
// objects, which become one value again.
std::optional<Document> random_states_of_dicts(const OpenedTraining& source) {
  Document document;
  ValueTree& tree = document.tree;
  std::map<std::string, NodeId> found;
  for (const TensorEntry& tensor : source.catalog().tensors) {
    if (!tensor.key.starts_with(kPrefix)) continue;
    const auto state = state_of_first(tensor.key);
    if (!state || !is_run_of_bytes(tensor)) return std::nullopt;
    const std::string storage = std::to_string(1'000'000 + document.storages.size());  // sorted
    const ckpt::LocatedRegion bytes = source.locate(tensor.chunks[0].region);
    if (bytes.view || bytes.bytes.count_bytes != tensor.shape[0]) return std::nullopt;
    document.storages.push_back({storage, bytes});
    found[*state] = ckpt::add_tensor(tree, tensor.dtype, tensor.shape, storage);
  }
  for (const ckpt::ObjectEntry& object : source.catalog().objects) {
    if (!object.key.starts_with(kPrefix)) continue;
    const auto state = state_of_first(object.key);
    const Document read = source.read_object(object);
    if (!state || !read.storages.empty()) return std::nullopt;
    found[*state] = tree.copy(read.tree.root());
  }
  const NodeId states = tree.dict(), trackers = tree.dict();
  for (const char* const name : kStates) {
    const auto state = found.extract(name);
    if (state.empty()) return std::nullopt;
    tree.put(states, name, state.mapped());
  }
  for (const auto& [name, state] : found) {
    if (!name.starts_with(kTrackers)) return std::nullopt;
    tree.put(trackers, std::string_view(name).substr(kTrackers.size()), state);
  }
  tree.put(states, "rng_tracker_states", trackers);
  tree.set_root(tree.list({states}));
  return document;
}

double common_step(const std::vector<const TensorEntry*>& steps, size_t param_count,
                   const OpenedTraining& source) {
  if (steps.size() != param_count) {
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = steps.at(0)->key},
                "there are " + std::to_string(steps.size()) + " counts of steps of " +
                    std::to_string(param_count) + " parameters with a state");
  }
  std::optional<double> common;
  for (const TensorEntry* const tensor : steps) {
    const auto refuse = [&](std::string problem) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = tensor->key}, std::move(problem),
                  "--model-only carries all weights, without the optimizer's state");
    };
    if (ckpt::element_count(tensor->shape) != 1) refuse("is not a count of steps");
    std::string bytes(ckpt::bytes_per_element(tensor->dtype), '\0');
    source.read(*tensor, ckpt::whole(tensor->shape), std::as_writable_bytes(std::span(bytes)));
    const auto step = step_number(tensor->dtype, bytes);
    if (!step) refuse("is not a count of steps");
    if (common.value_or(*step) != *step) {
      refuse(
          "counts other steps than other parameters, which Megatron's DistributedOptimizer "
          "does not have");
    }
    common = step;
  }
  return common.value_or(0);
}

}  // namespace optim
