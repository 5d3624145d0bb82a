#include <training/contents.h>
#include <training/megatron_folders.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <tuple>

#include <ckpt/files_beside.h>

#include "args/common_state.h"
#include "args/run_args.h"
#include "grid/build_state.h"
#include "layouts/layouts.h"
#include "layouts/parts/tensor_parts.h"
#include "layouts/torch/readers.h"
#include "model/megatron_keys.h"
#include "model/tensor_names.h"
#include "report/logical_names.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

using ckpt::Format;

namespace fs = std::filesystem;

constexpr std::string_view kStacked = "decoder.layers.";
// More than a model has layers: such a tensor stays one.
constexpr uint64_t kLayersMax = 1 << 16;
constexpr std::string_view kModelFile = "model_optim_rng.pt";
// Megatron writes it after all else in a torch_dist folder.
constexpr std::string_view kWrittenLast = kMegatronFolders.backend_file;

// Where "decoder.layers." starts in a name of a tensor that is stacked over layers.
std::optional<size_t> stack_in(const LogicalTensor& tensor) {
  const size_t at = tensor.name.find(kStacked);
  const bool is_step = at != tensor.name.npos && (at == 0 || tensor.name[at - 1] == '.');
  if (!is_step || tensor.shape.empty() || tensor.shape[0] > kLayersMax) return std::nullopt;
  return is_stacked_key(std::string_view(tensor.name).substr(at)) ? std::optional(at)
                                                                  : std::nullopt;
}

void add_layers(const LogicalTensor& stacked, size_t at, Contents& contents) {
  const uint64_t layers = stacked.shape[0];
  const std::string before = stacked.name.substr(0, at + kStacked.size());
  const std::string behind = stacked.name.substr(at + kStacked.size());
  LogicalTensor layer = stacked;
  layer.shape.assign(stacked.shape.begin() + 1, stacked.shape.end());
  layer.count_bytes = layers == 0 ? 0 : stacked.count_bytes / layers;
  for (uint64_t i = 0; i < layers; ++i) {
    layer.name = before + std::to_string(i) + "." + behind;
    layer.layer = i;
    contents.tensors.push_back(layer);
  }
}

// The first dimension taken off.
TensorEntry layer_of(const TensorEntry& stacked, uint64_t layer) {
  TensorEntry entry = stacked;
  entry.shape = {stacked.shape.begin() + 1, stacked.shape.end()};
  entry.chunks.clear();
  Box whole = ckpt::whole(stacked.shape);
  whole.offsets[0] = layer;
  whole.sizes[0] = 1;
  for (const Chunk& chunk : stacked.chunks) {
    const auto box = ckpt::intersect(chunk.box, whole);
    if (!box) continue;
    Chunk part = part_of(chunk, *box, stacked.dtype);
    part.box = {{box->offsets.begin() + 1, box->offsets.end()},
                {box->sizes.begin() + 1, box->sizes.end()}};
    if (part.view) {
      const auto& [offset, strides] = *part.view;
      part.view = std::make_shared<const ckpt::StridedView>(
          ckpt::StridedView{offset, {strides.begin() + 1, strides.end()}});
    }
    entry.chunks.push_back(std::move(part));
  }
  return entry;
}

// Weights that are the same bytes seen in the same way, as torch.save stores tied ones.
class CopyFinder {
 public:
  bool is_copy(const TensorEntry& tensor) {
    if (tensor.chunks.size() != 1 || ckpt::element_count(tensor.shape) == 0) return false;
    const Chunk& chunk = tensor.chunks[0];
    const ckpt::StridedView view = chunk.view ? *chunk.view : ckpt::StridedView{};
    return !seen_
                .insert({chunk.region.file, chunk.region.bytes.offset_bytes,
                         chunk.payload_offset_bytes, view.offset, view.strides, tensor.shape})
                .second;
  }

 private:
  std::set<std::tuple<uint32_t, uint64_t, uint64_t, uint64_t, Extents, Extents>> seen_;
};

bool has_rank_folders(const OpenedTraining& checkpoint) {
  return checkpoint.catalog().format == Format::Torch && is_megatron(checkpoint) &&
         std::ranges::any_of(checkpoint.catalog().files, [](const ckpt::FileEntry& file) {
           return file.path.find('/') != file.path.npos;
         });
}

void add_stored(const OpenedTraining& checkpoint, Contents& contents) {
  const bool joins_folders = has_rank_folders(checkpoint);
  if (joins_folders) contents = join_rank_folders(checkpoint);
  const bool rank_files = has_rank_files(checkpoint);
  CopyFinder copies;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    LogicalTensor logical = stored_tensor(tensor, is_megatron(checkpoint));
    const bool is_model = logical.role == KeyKind::Model;
    if (is_model && (joins_folders || copies.is_copy(tensor))) continue;
    // Of a rank's layer_wise_optimizer_R.pt model_optim_rng.pt has a copy.
    const bool is_state = logical.role == KeyKind::OptimizerState;
    if (is_state && rank_files && tensor.file.ends_with(kModelFile)) continue;
    const auto stack = is_megatron(checkpoint) ? stack_in(logical) : std::nullopt;
    if (stack) {
      add_layers(logical, *stack, contents);
    } else {
      contents.tensors.push_back(std::move(logical));
    }
  }
  for (const ckpt::ObjectEntry& object : checkpoint.catalog().objects) {
    if (!is_state_object(object)) continue;
    contents.tensors.push_back({KeyKind::OptimizerState,
                                {},
                                "param_state",
                                DType::UInt8,
                                {object.region->bytes.count_bytes},
                                object.region->bytes.count_bytes});
  }
}

// A file of a moving average alone: that is its model.
void take_average_alone(std::vector<LogicalTensor>& tensors) {
  if (std::ranges::find(tensors, KeyKind::Model, &LogicalTensor::role) != tensors.end()) return;
  for (LogicalTensor& tensor : tensors) {
    if (tensor.role == KeyKind::Average) tensor.role = KeyKind::Model;
  }
}

// metadata.json names the form of a common state that is not there.
bool lacks_common_state(const OpenedTraining& checkpoint) {
  const std::string name(kMegatronFolders.common_file);
  if (checkpoint.source().has(checkpoint.folder() / name)) return false;
  const std::string text =
      ckpt::text_beside(checkpoint, std::string(kMegatronFolders.backend_file));
  return text.find('"' + std::string(kMegatronFolders.common_key) + '"') != text.npos;
}

}  // namespace

std::string key_of(const LogicalTensor& tensor) {
  if (tensor.role != KeyKind::OptimizerState) return tensor.name;
  const bool is_named = !tensor.name.empty() && !tensor.state.empty();
  return is_named ? state_key(tensor.state, tensor.name) : std::string();
}

TensorRef entry_of(const LogicalTensor& tensor) {
  if (tensor.value == nullptr) return nullptr;
  TensorEntry entry =
      tensor.layer ? layer_of(*tensor.value, *tensor.layer) : TensorEntry(*tensor.value);
  entry.file.clear();
  entry.key = key_of(tensor);
  return std::make_shared<const TensorEntry>(std::move(entry));
}

Contents list_contents(const OpenedTraining& checkpoint, const TrainingState* state) {
  Contents contents;
  if (state != nullptr) {
    contents.tensors.reserve(tensors_of(*state).size());
    for (const TrainedParam& param : state->params) {
      std::ranges::move(tensors_of_param(param), std::back_inserter(contents.tensors));
    }
    return contents;
  }
  add_stored(checkpoint, contents);
  take_average_alone(contents.tensors);
  std::vector<LogicalTensor*> tensors;
  for (LogicalTensor& tensor : contents.tensors) tensors.push_back(&tensor);
  match_state_to_weights(tensors);
  return contents;
}

std::string optimizer_sharding(const OpenedTraining& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  if (!is_megatron(checkpoint)) return {};
  const bool has_state = std::ranges::any_of(catalog.tensors,
                                             [](const TensorEntry& tensor) {
                                               return role_of(tensor) == KeyKind::OptimizerState;
                                             }) ||
                         std::ranges::any_of(catalog.objects, is_state_object);
  if (!has_state) return {};
  const auto stated = stated_filing(checkpoint);
  if (stated && stated->filing == &kDealt) return "layer_wise";
  if (std::ranges::any_of(catalog.tensors, is_coalesced_buffer)) return "flat_file";
  const RunArgs& args = checkpoint.args();
  if (!args.are_there()) return {};
  if (!args.is_true("use_distributed_optimizer")) return "replicated";
  const CommonState* const common = checkpoint.common_state();
  return common ? stated_sharding(common->document->tree.root()) : std::string();
}

std::vector<std::string> missing_files(const OpenedTraining& checkpoint) {
  std::vector<std::string> missing = missing_rank_files(checkpoint);
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    if (file.is_missing) missing.push_back(file.path);
  }
  const bool is_dist = checkpoint.catalog().format == Format::TorchDist;
  if (is_dist && is_megatron(checkpoint) &&
      !checkpoint.source().has(checkpoint.folder() / kWrittenLast)) {
    missing.emplace_back(kWrittenLast);
  }
  if (is_dist && is_megatron(checkpoint) && lacks_common_state(checkpoint)) {
    missing.emplace_back(kMegatronFolders.common_file);
  }
  std::ranges::sort(missing);
  return missing;
}

}  // namespace optim
