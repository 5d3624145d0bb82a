#include "layouts/torch/readers.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <ckpt/text.h>
#include <optim/param_key.h>

#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr std::string_view kFolderStart = "mp_rank_";
constexpr std::string_view kLayers = "layers.";

// "decoder.layers.3.mlp.weight": what is before the number, the number, what is behind it.
struct LayerName {
  std::string_view before;
  uint32_t layer = 0;
  std::string_view behind;
};

std::optional<LayerName> layer_name(std::string_view name) {
  const size_t at = name.find(kLayers);
  if (at == name.npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;
  const size_t start = at + kLayers.size();
  const size_t end = std::min(name.find('.', start), name.size());
  const auto layer = ckpt::number_in<uint32_t>(name.substr(start, end - start));
  if (!layer) return std::nullopt;
  return LayerName{name.substr(0, start), *layer, name.substr(end)};
}

// What tensor parallelism does not split, besides norms and what is listed in param_key.cc.
constexpr std::string_view kWholeModules[] = {"position_embeddings", "router", "linear_proj",
                                              "linear_fc2", "shared_experts"};

// Whether it is known that ranks have parts of a tensor, or that each has all of it.
bool is_split_known(std::string_view name, const ParamAttributes& attributes) {
  if (attributes.partition_dim >= 0 || name.find("norm") != name.npos) return true;
  const std::string_view module = name.substr(0, std::min(name.rfind('.'), name.size()));
  return std::ranges::any_of(kWholeModules,
                             [&](std::string_view whole) { return module.ends_with(whole); });
}

// A tensor of a rank's model, and where Megatron has it in the grid.
struct Part {
  const TensorEntry* tensor = nullptr;
  std::string name;
  FolderRank rank;
  uint32_t model_chunk = 0;  // of a pipeline that is interleaved: /model1/...
};

// "/model1/decoder.weight": chunk 1, decoder.weight. nullopt for what is not the model's.
std::optional<Part> part_of(const TensorEntry& tensor) {
  const std::vector<std::string> steps = key_steps(tensor.key);
  if (steps.size() != 2 || !steps[0].starts_with("model")) return std::nullopt;
  const std::string_view digits = std::string_view(steps[0]).substr(5);
  const auto chunk = digits.empty() ? std::optional(0u) : ckpt::number_in<uint32_t>(digits);
  if (!chunk) return std::nullopt;
  return Part{&tensor, steps[1], {}, *chunk};
}

class Joiner {
 public:
  explicit Joiner(const OpenedTraining& checkpoint)
      : checkpoint_(checkpoint), args_(checkpoint.args()) {}

  Contents run() {
    if (!args_.are_there()) return as_stored("no arguments say how the ranks were numbered");
    for (const TensorEntry& tensor : checkpoint_.catalog().tensors) {
      if (role_of(tensor) != KeyKind::Model) continue;
      auto part = part_of(tensor);
      if (!part) return as_stored("some are not in a state dict called model");
      const std::string_view folder =
          std::string_view(tensor.file).substr(0, tensor.file.find('/'));
      const auto rank = folder_rank(folder, args_);
      if (!rank) return as_stored("the names of the rank folders do not fit the sizes of the run");
      part->rank = *rank;
      parts_.push_back(std::move(*part));
    }
    if (has_unknown_splits())
      return as_stored("it is not known how tensor parallelism splits them");
    number_layers();
    for (const Part& part : parts_) join(part);
    return std::move(contents_);
  }

 private:
  // A stage of the interleaved pipeline: the first chunk's stages come first.
  using Stage = std::pair<uint32_t, uint32_t>;
  static Stage stage_of(const Part& part) { return {part.model_chunk, part.rank.pipeline}; }

  Contents as_stored(std::string reason) const {
    Contents contents;
    for (const TensorEntry& tensor : checkpoint_.catalog().tensors) {
      if (role_of(tensor) != KeyKind::Model) continue;
      contents.tensors.push_back({KeyKind::Model,
                                  weight_name(tensor),
                                  {},
                                  tensor.dtype,
                                  tensor.shape,
                                  ckpt::count_bytes(tensor),
                                  TensorRef(TensorRef(), &tensor)});
    }
    contents.uncounted_reason = std::move(reason);
    return contents;
  }

  // Each stage numbers its layers from 0. A family of layers has its name before the number.
  void number_layers() {
    std::map<std::pair<std::string, Stage>, uint32_t> counts;
    for (const Part& part : parts_) {
      const auto layer = layer_name(part.name);
      if (!layer) continue;
      uint32_t& count = counts[{std::string(layer->before), stage_of(part)}];
      count = std::max(count, layer->layer + 1);
    }
    std::map<std::string, uint32_t> next;
    for (const auto& [place, count] : counts) {
      first_layer_[place] = next[place.first];
      next[place.first] += count;
    }
  }

  std::string global_name(const Part& part) const {
    const auto layer = layer_name(part.name);
    if (!layer) return part.name;
    const uint32_t first = first_layer_.at({std::string(layer->before), stage_of(part)});
    return std::string(layer->before) + std::to_string(first + layer->layer) +
           std::string(layer->behind);
  }

  uint32_t tensor_parallel(const ParamAttributes& attributes) const {
    return args_.size(attributes.expert_tp ? "expert_tensor_parallel_size"
                                           : "tensor_model_parallel_size");
  }

  bool has_unknown_splits() const {
    return std::ranges::any_of(parts_, [this](const Part& part) {
      const auto attributes = megatron_attributes(part.name, part.tensor->shape.size());
      return tensor_parallel(attributes) > 1 && !is_split_known(part.name, attributes);
    });
  }

  void join(const Part& part) {
    // The last pipeline stage has a copy of word embeddings that are the output layer, too.
    const bool is_tied = args_.is_false("untie_embeddings_and_output_weights");
    if (is_tied && part.name == kOutputLayer) return;
    const ParamAttributes attributes = megatron_attributes(part.name, part.tensor->shape.size());
    const uint32_t parts = tensor_parallel(attributes);
    const auto axis = static_cast<size_t>(attributes.partition_dim);
    const bool is_split =
        parts > 1 && attributes.partition_dim >= 0 && axis < part.tensor->shape.size();
    const uint32_t expert_rank = attributes.expert_tp ? part.rank.expert : 0;
    const std::string name = global_name(part);
    if (!seen_.insert({name, expert_rank, is_split ? part.rank.tensor % parts : 0}).second) return;
    const auto [place, is_new] = places_.insert({{name, expert_rank}, contents_.tensors.size()});
    if (is_new) {
      contents_.tensors.push_back(
          {KeyKind::Model, name, {}, part.tensor->dtype, part.tensor->shape, 0});
      // The rows of SwiGLU stand in another order in the parts: these are not put together here.
      if (!is_split) contents_.tensors.back().value = TensorRef(TensorRef(), part.tensor);
      if (is_split) contents_.tensors.back().shape[axis] = 0;
    }
    LogicalTensor& whole = contents_.tensors[place->second];
    if (is_split) whole.shape[axis] += part.tensor->shape[axis];
    whole.count_bytes += ckpt::count_bytes(*part.tensor);
  }

  const OpenedTraining& checkpoint_;
  const RunArgs& args_;
  std::vector<Part> parts_;
  std::map<std::pair<std::string, Stage>, uint32_t> first_layer_;
  std::set<std::tuple<std::string, uint32_t, uint32_t>> seen_;  // name, expert rank, part
  std::map<std::pair<std::string, uint32_t>, size_t> places_;
  Contents contents_;
};

}  // namespace

std::optional<FolderRank> folder_rank(std::string_view folder, const RunArgs& args) {
  if (!folder.starts_with(kFolderStart)) return std::nullopt;
  folder.remove_prefix(kFolderStart.size());
  std::vector<uint32_t> numbers;
  for (bool is_last = false; !is_last;) {
    const size_t end = folder.find('_');
    is_last = end == folder.npos;
    const auto number = ckpt::number_in<uint32_t>(folder.substr(0, end));
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    folder.remove_prefix(is_last ? folder.size() : end + 1);
  }
  const bool has_pipeline = args.size("pipeline_model_parallel_size") > 1;
  const bool has_expert = args.size("expert_model_parallel_size") > 1;
  if (numbers.size() != 1u + has_pipeline + has_expert) return std::nullopt;
  return FolderRank{numbers[0], has_pipeline ? numbers[1] : 0, has_expert ? numbers.back() : 0};
}

Contents join_rank_folders(const OpenedTraining& checkpoint) { return Joiner(checkpoint).run(); }

}  // namespace optim
