// rng_state.(PP, TP).0.STATE of fsdp_dtensor, rng_state.0.STATE of torch_dcp: tensors of bytes and
// objects, which become one value again.
#include "layouts/torch_dist/state_dict_rng.h"

#include <map>
#include <string>
#include <string_view>

#include <ckpt/archive_builder.h>

namespace optim {
namespace {

using ckpt::Document;
using ckpt::NodeId;
using ckpt::ValueTree;

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

bool is_run_of_bytes(const ckpt::TensorEntry& tensor) {
  return tensor.dtype == ckpt::DType::UInt8 && tensor.shape.size() == 1 &&
         tensor.chunks.size() == 1 && !tensor.chunks[0].view &&
         tensor.chunks[0].payload_offset_bytes == 0;
}

}  // namespace

std::optional<Document> random_states_of_dicts(const OpenedTraining& source) {
  Document document;
  ValueTree& tree = document.tree;
  std::map<std::string, NodeId> found;
  for (const ckpt::TensorEntry& tensor : source.catalog().tensors) {
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

}  // namespace optim
