// Rank folders to one model.
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/tensor_stream.h>

#include "grid/placement.h"
#include "layouts/job/tensor_attributes.h"
#include "layouts/parts/stacked_layers.h"
#include "layouts/torch/readers.h"
#include "layouts/torch/torch_optimizers.h"
#include "model/tensor_names.h"
#include "state/value_scan.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr std::string_view kModel = "/model/";
// Of the one rank folder that such checkpoints have.
constexpr std::string_view kModelFile = "mp_rank_00/model_optim_rng.pt";
constexpr size_t kPieceElements = size_t{1} << 18;

struct WeightsAndMasters {
  std::vector<const TensorEntry*> weights, masters;
};

// Not what a module keeps of its own, nor a weight once more, under its other name (T5's position
// embeddings).
bool is_weight(const TensorEntry& tensor, const OpenedTraining& checkpoint) {
  if (tensor.file != kModelFile || !tensor.key.starts_with(kModel)) return false;
  const std::string_view name = std::string_view(tensor.key).substr(kModel.size());
  if (is_extra_state(name)) return false;
  const std::string_view first = ModelRules::built_in().same_as(name);
  return first.empty() ||
         checkpoint.catalog().find_tensor(std::string(kModel).append(first), kModelFile) == nullptr;
}

// nullopt where masters tell nothing of the weights: these are not of one 16-bit type.
std::optional<WeightsAndMasters> list_tensors(const OpenedTraining& checkpoint) {
  WeightsAndMasters found;
  const bool has_files = has_rank_files(checkpoint);  // of which the model's file repeats one
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    if (is_weight(tensor, checkpoint)) {
      found.weights.push_back(&tensor);
    } else if ((tensor.file == kModelFile) != has_files && is_numbered_master(tensor)) {
      found.masters.push_back(&tensor);
    }
  }
  const auto is_known = [&](const TensorEntry* weight) {
    return weight->dtype == found.weights[0]->dtype &&
           (weight->dtype == DType::BFloat16 || weight->dtype == DType::Float16);
  };
  const bool are_fit =
      found.masters.size() < found.weights.size() && std::ranges::all_of(found.weights, is_known) &&
      std::ranges::all_of(found.masters,
                          [](const TensorEntry* m) { return m->dtype == DType::Float32; });
  return are_fit ? std::optional(std::move(found)) : std::nullopt;
}

// Of a weight, or of what a master rounds to.
uint64_t content_sum(const TensorEntry& tensor, DType weights, const OpenedTraining& source) {
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  std::vector<std::byte> buffer(kPieceElements * element_bytes);
  ckpt::TensorStream stream(tensor, source);
  uint64_t sum = 0, first = 0;
  while (stream.left_bytes() > 0) {
    const auto piece =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), stream.left_bytes()));
    stream.read(piece);
    sum += tensor.dtype == DType::Float32 ? sum_of_masters(piece, first, weights)
                                          : sum_of_weights(piece, first, weights);
    first += piece.size() / element_bytes;
  }
  return sum;
}

}  // namespace

void TorchModels::read(TensorParts& parts) {
  for (const WorldRank& rank : source_.ranks) {
    if (rank.writes_model) folders_.push_back(read_folder(rank));
  }
  require_alike();
  order_model();
  for (const Folder& folder : folders_) add_parts(folder, parts);
}

TorchModels::Folder TorchModels::read_folder(const WorldRank& rank) const {
  const Document& document = source_.document(rank.model_file());
  Folder folder{&rank, {}};
  for (size_t chunk = 0; chunk < state_.grid.pipeline.chunks_per_stage; ++chunk) {
    const Place place = Place{rank.model_file(), ""} / model_key(state_.grid.pipeline, chunk);
    folder.chunks.push_back(read_chunk(document, place));
  }
  return folder;
}

TorchModels::LocalModel TorchModels::read_chunk(const Document& document,
                                                const Place& place) const {
  const auto model = document.tree.root().find(place.pointer.substr(1));
  if (!model) place.corrupt("the model's state dict is missing");
  LocalModel entries;
  std::set<std::string_view> names;
  for (const auto& [key, value] : ckpt::items_of(*model)) {
    if (!key.is(Kind::Str)) place.corrupt("a name is not a string");
    if (!names.insert(key.text()).second) {
      (place / key.text()).unsupported("the model's state dict has this name twice");
    }
    entries.push_back({std::string(key.text()), value, place / key.text()});
  }
  return entries;
}

const TorchModels::Folder& TorchModels::folder_of(uint32_t stage, uint32_t expert_rank) const {
  return *std::ranges::find_if(folders_, [&](const Folder& folder) {
    return folder.rank->at.pp == stage && folder.rank->at.ep == expert_rank;
  });
}

// Ranks of one stage differ in values, not in names.
void TorchModels::require_alike() const {
  for (const Folder& folder : folders_) {
    const Folder& first = folder_of(folder.rank->at.pp, 0);
    for (size_t chunk = 0; chunk < folder.chunks.size(); ++chunk) {
      const LocalModel& own = folder.chunks[chunk];
      const LocalModel& other = first.chunks[chunk];
      const auto [a, b] =
          std::ranges::mismatch(own, other, {}, &LocalEntry::name, &LocalEntry::name);
      if (a == own.end() && b == other.end()) continue;
      const LocalEntry& odd = a != own.end() ? *a : *b;
      odd.place.corrupt("is not at this place in " +
                            (a != own.end() ? first : folder).rank->model_file() +
                            ", of the same pipeline stage",
                        kMixedFilesHint);
    }
  }
}

RankPart TorchModels::part_of(const ModelChunk& chunk, uint32_t expert_rank) const {
  return rank_part(state_, state_.grid, chunk, expert_rank);
}

// Of the divided stack a rank has a part, so that args say how many layers there are.
void TorchModels::find_stacks() {
  const Value args = *source_.checkpoint.args().args();
  LayerStacks stacks(LayerStacks::From::StateDicts);
  for (uint32_t stage = 0; stage < state_.grid.sizes.pipeline_parallel; ++stage) {
    for (const LocalModel& chunk : folder_of(stage, 0).chunks) {
      for (const LocalEntry& entry : chunk) stacks.add(entry.name);
    }
  }
  stacks.settle(args, state_);
  if (is_tied_by_weights(args, state_.facts)) state_.facts.output_is_tied = has_copy_of_embedding();
  if (!state_.facts.divided_stack.empty() || state_.grid.sizes.pipeline_parallel == 1) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args.pipeline_model_parallel_size"},
              "stages divide an encoder and a decoder (T5), which Megatron numbers wrongly");
}

// Whether the last stage's output layer is the first stage's embedding.
bool TorchModels::has_copy_of_embedding() const {
  const auto find = [this](uint32_t stage, std::string_view own) -> const LocalEntry* {
    for (const LocalModel& chunk : folder_of(stage, 0).chunks) {
      for (const LocalEntry& entry : chunk) {
        if (without_submodel(entry.name) == own) return &entry;
      }
    }
    return nullptr;
  };
  const LocalEntry* const output = find(state_.grid.sizes.pipeline_parallel - 1, kOutputLayer);
  const LocalEntry* const embedding = find(0, kWordEmbeddings);
  return output == nullptr || embedding == nullptr ||
         are_equal(source_.tensor_at(embedding->place), source_.tensor_at(output->place),
                   source_.checkpoint);
}

void TorchModels::order_model() {
  find_stacks();
  chunks_ = model_chunks(state_.grid.pipeline);
  for (const ModelChunk& chunk : chunks_) {
    add_chunk(chunk);
    add_metadata(chunk);
  }
  put_stages_in_order();
}

// A stage registers its language model's layers before a vision model, so that the whole model has
// another order than its stages one behind the other.
void TorchModels::put_stages_in_order() {
  const auto& stacks = state_.facts.stacks;
  const bool has_submodel =
      std::ranges::find(stacks, kVisionStack, &LayerStack::prefix) != stacks.end();
  if (chunks_.size() == 1 || !has_submodel) return;
  order_by_rules(state_);
  std::vector<TrainedParam> params;
  std::map<uint32_t, uint32_t> places;  // of the parameters, by those that they had
  for (uint32_t i = 0; i < state_.model.size(); ++i) {
    ModelEntry& entry = state_.model[i];
    entries_[entry.name] = i;
    if (entry.what == ModelEntry::What::ExtraState) continue;
    const auto next = static_cast<uint32_t>(params.size());
    const auto [place, is_first] = places.try_emplace(entry.param, next);
    if (is_first) params.push_back(std::move(state_.params[entry.param]));
    entry.param = place->second;
  }
  state_.params = std::move(params);
}

// Module versions, which only a chunk of the same modules can take.
void TorchModels::add_metadata(const ModelChunk& chunk) {
  const Document& document = source_.document(folder_of(chunk.stage, 0).rank->model_file());
  const auto model = document.tree.root().find(model_key(state_.grid.pipeline, chunk.chunk));
  if (!model->is(Kind::Object) || !model->state()) return;
  state_.model_metadata.resize(chunks_.size());
  state_.model_metadata[static_cast<size_t>(&chunk - chunks_.data())] =
      common_.carry(*model->state(), document);
}

std::string counts_of(const TrainingState& state) {
  const bool is_submodel = state.facts.divided_stack.starts_with(kLanguageModel);
  std::string text = is_submodel ? "the language model's layers, " : "args.num_layers ";
  text += std::to_string(state.grid.pipeline.num_layers);
  const uint32_t experts = state.facts.expert_count;
  return text + " and args.num_experts " + (experts == 0 ? "None" : std::to_string(experts));
}

// The entries of a chunk; of a layer's experts those of all expert parallel ranks, rank by rank.
void TorchModels::add_chunk(const ModelChunk& chunk) {
  const uint32_t expert_ranks = state_.grid.sizes.expert_parallel;
  const LocalModel& local = folder_of(chunk.stage, 0).chunks[chunk.chunk];
  for (size_t begin = 0, end = 0; begin < local.size(); begin = end) {
    const bool are_experts = expert_in(local[begin].name).has_value();
    end = begin + 1;
    while (are_experts && end < local.size() && expert_in(local[end].name)) ++end;
    for (uint32_t ep = 0; ep < (are_experts ? expert_ranks : 1); ++ep) {
      const LocalModel& of_rank = folder_of(chunk.stage, ep).chunks[chunk.chunk];
      for (size_t i = begin; i < end; ++i) {
        const auto name = name_in_model(of_rank[i].name, part_of(chunk, ep));
        if (!name) {
          of_rank[i].place.corrupt(
              "is of a layer or expert that this rank does not have by " + counts_of(state_),
              kMixedFilesHint);
        }
        if (without_submodel(of_rank[i].name) == kOutputLayer && state_.facts.output_is_tied &&
            state_.grid.sizes.pipeline_parallel == 1) {
          of_rank[i].place.corrupt(
              "is beside the embeddings, although args.untie_embeddings_and_output_weights is "
              "False");
        }
        add_entry(of_rank[i], *name);
      }
    }
  }
}

// A GroupedTensor of TransformerEngine: no number names an expert, and the optimizer counts all
// experts of a rank as one parameter.
static void refuse_grouped_tensor(const TensorEntry& tensor, const std::string& name) {
  if (tensor.shape.size() != 3 || name.find(".mlp.experts.linear_fc") == name.npos) return;
  throw Error(ErrorCode::Unsupported, {tensor.file, std::nullopt, name},
              "holds " + std::to_string(tensor.shape[0]) +
                  " experts of a rank in one tensor of three dimensions "
                  "(moe_single_grouped_weight), which is not read from rank files",
              "torch_dist has each expert by itself: save in it");
}

void TorchModels::add_entry(const LocalEntry& local, const std::string& name) {
  if (!entries_.emplace(name, static_cast<uint32_t>(state_.model.size())).second) return;  // a copy
  ModelEntry entry;
  entry.name = name;
  const auto first = entries_.find(rules_of(state_).same_as(name));
  if (is_extra_state(name)) {
    entry.what = ModelEntry::What::ExtraState;
  } else if (first != entries_.end()) {
    entry.what = ModelEntry::What::OtherName;
    entry.param = state_.model[first->second].param;
  } else {
    entry.param = static_cast<uint32_t>(state_.params.size());
    refuse_grouped_tensor(source_.tensor_at(local.place), name);
    state_.params.push_back(make_param(with_key(source_.tensor_at(local.place), name)));
    if (name == kNormOfHybrids) state_.facts.layers_stacked = false;  // in torch_dist
  }
  state_.model.push_back(std::move(entry));
}

void TorchModels::add_parts(const Folder& folder, TensorParts& parts) {
  const RankCoordinates& at = folder.rank->at;
  const Document& document = source_.document(folder.rank->model_file());
  for (uint32_t i = 0; i < folder.chunks.size(); ++i) {
    const RankPart part = part_of(chunks_[chunk_index(state_.grid.pipeline, i, at.pp)], at.ep);
    for (const LocalEntry& local : folder.chunks[i]) {
      const auto name = name_in_model(local.name, part);
      const auto known = name ? entries_.find(*name) : entries_.end();
      if (known == entries_.end()) local.place.corrupt("is in no other rank's model");
      ModelEntry& entry = state_.model[known->second];
      if (entry.what == ModelEntry::What::ExtraState) {
        add_extra_state(local, folder, entry);
        continue;
      }
      if (entry.what == ModelEntry::What::OtherName) {
        require_same(local, folder.chunks[i]);
        continue;
      }
      const bool is_first = parts.first(*name) == nullptr;
      parts.add(*name, at.tensor_rank(expert_in(*name).has_value()),
                source_.tensor_at(local.place));
      if (is_first) note_attributes({*name, local.value, document}, common_, state_);
    }
  }
}

void TorchModels::require_same(const LocalEntry& local, const LocalModel& model) const {
  const std::string_view first = rules_of(state_).same_as(local.name);
  const auto other = std::ranges::find(model, first, &LocalEntry::name);
  if (other != model.end() && are_equal(source_.tensor_at(other->place),
                                        source_.tensor_at(local.place), source_.checkpoint)) {
    return;
  }
  local.place.corrupt("differs from '" + std::string(first) + "', of which it is another name");
}

// One that holds something (fp8 scales) becomes a document of its own. Ranks that hold other ones
// are listed.
void TorchModels::add_extra_state(const LocalEntry& local, const Folder& folder,
                                  ModelEntry& known) {
  const Document& document = source_.document(folder.rank->model_file());
  const auto [place, is_first] =
      extra_places_.emplace(known.name, PlacedValue{local.value, local.place});
  if (!is_first) {
    const PlacedValue &stated = place->second, own{local.value, local.place};
    if (are_equal_values(source_.checkpoint, stated, own)) return;
    const std::string& first = stated.place.file;
    if (is_state_of_experts(known.name)) {
      if (known.object) {
        state_.not_carried.push_back({known.name, "expert-parallel ranks hold different ones"});
      }
      known.object.reset();
      return;
    }
    state_.not_carried.push_back(
        {known.name + " of " + folder.rank->folder.substr(0, folder.rank->folder.size() - 1),
         "differs from that of " + first.substr(0, first.find('/')) +
             ", which is carried for all ranks"});
    return;
  }
  if (local.value.is_none()) return;
  auto own = std::make_shared<Document>();
  own->tree.set_root(own->tree.copy(local.value));
  own->storages = document.storages;
  known.object = static_cast<uint32_t>(state_.extra_states.size());
  state_.extra_states.push_back(std::move(own));
}

bool may_have_frozen_params(const OpenedTraining& checkpoint) {
  const auto found = list_tensors(checkpoint);
  if (!found) return false;
  std::map<Extents, int64_t> left;  // weights of a shape without a master
  for (const TensorEntry* weight : found->weights) ++left[weight->shape];
  for (const TensorEntry* master : found->masters) --left[master->shape];
  return std::ranges::all_of(left, [](const auto& shape) { return shape.second >= 0; });
}

std::optional<std::set<std::string>> find_frozen_params(const OpenedTraining& checkpoint) {
  const auto found = list_tensors(checkpoint);
  if (!found) return std::nullopt;
  const DType dtype = found->weights[0]->dtype;
  using Content = std::pair<Extents, uint64_t>;
  std::map<Content, std::vector<std::string>> names;
  for (const TensorEntry* weight : found->weights) {
    names[{weight->shape, content_sum(*weight, dtype, checkpoint)}].push_back(
        weight->key.substr(kModel.size()));
  }
  std::map<Content, size_t> masters;
  for (const TensorEntry* master : found->masters) {
    ++masters[{master->shape, content_sum(*master, dtype, checkpoint)}];
  }
  std::set<std::string> frozen;
  for (auto& [content, equal] : names) {
    const auto owned = masters.extract(content);
    const size_t count = owned.empty() ? 0 : owned.mapped();
    if (count != 0 && count != equal.size()) return std::nullopt;  // some of several equal ones
    if (count == 0) frozen.insert(equal.begin(), equal.end());
  }
  return masters.empty() ? std::optional(std::move(frozen)) : std::nullopt;
}

}  // namespace optim
