// Layers go to stages, experts to expert parallel ranks, blocks of rows and columns to tensor
// parallel ranks.
#include "grid/placement.h"

#include <algorithm>

#include "grid/sharing_of_params.h"
#include "model/tensor_names.h"
#include "parallel/rank_grid.h"
#include "state/words.h"

namespace optim {
namespace {

bool contains(const LayerRange& range, uint32_t layer) {
  return layer >= range.first && layer - range.first < range.count;
}

bool is_behind_layers(std::string_view name) {
  return name.starts_with("decoder.final_layernorm.") ||
         name.starts_with("encoder.final_layernorm.");
}

constexpr uint32_t kNoGroup = ~uint32_t{0};

}  // namespace

const ModelRules& rules_of(const TrainingState& state) {
  return state.rules ? *state.rules : ModelRules::built_in();
}

bool is_vocabulary(const TrainingState& state, const std::string& name) {
  return rules_of(state).is_vocabulary(name);
}

bool is_buffer(const TrainingState& state, const std::string& name) {
  const auto found = rules_of(state).find(name);
  return found && found->rule->buffer;
}

void order_by_rules(TrainingState& state) {
  const auto position_of = [&](const std::string& name) {
    const auto found = rules_of(state).find(name);
    if (found && found->has_known_place) return found->place;
    if (state.unknown_order.empty()) state.unknown_order = name;
    return found ? found->place : place_without_rule(name);
  };
  using Placed = std::pair<ModelPlace, ModelEntry>;
  std::vector<Placed> placed;
  placed.reserve(state.model.size());
  for (ModelEntry& entry : state.model) {
    const ModelPlace place = position_of(entry.name);
    placed.emplace_back(place, std::move(entry));
  }
  std::ranges::stable_sort(placed, {}, &Placed::first);
  state.model = std::vector<ModelEntry>();  // as long as it is, no longer
  state.model.reserve(placed.size());
  for (Placed& entry : placed) state.model.push_back(std::move(entry.second));
}

bool is_frozen(const TrainingState& state, const TrainedParam& param) {
  return !state.chain.empty() && !param.info.requires_grad && !is_buffer(state, param.info.name);
}

RankPart rank_part(const TrainingState& state, const RunGrid& grid, const ModelChunk& chunk,
                   uint32_t expert_rank) {
  RankPart part{.chunk = chunk,
                .output_is_tied = state.facts.output_is_tied,
                .divided_stack = state.facts.divided_stack};
  if (state.facts.expert_count > 0) {
    part.experts = experts_on(state.facts.expert_count, expert_rank, grid.sizes.expert_parallel);
  }
  return part;
}

Placement::Placement(const TrainingState& state, const RunGrid& grid, uint64_t vocabulary_rows)
    : state_(state),
      grid_(grid),
      vocabulary_rows_(vocabulary_rows),
      chunks_(model_chunks(grid.pipeline)),
      entries_(chunks_.size()) {
  if (state.facts.expert_count > 0) {
    experts_on(state.facts.expert_count, 0, grid.sizes.expert_parallel);  // throws
  }
  place_entries();
}

void Placement::place_entries() {
  experts_.resize(state_.params.size());
  has_vocabulary_.resize(state_.params.size());
  for (size_t i = 0; vocabulary_rows_ != 0 && i < state_.params.size(); ++i) {
    has_vocabulary_[i] = is_vocabulary(state_, state_.params[i].info.name);
  }
  for (uint32_t i = 0; i < state_.model.size(); ++i) {
    const ModelEntry& entry = state_.model[i];
    const auto expert = expert_in(entry.name);
    experts_of_entries_.push_back(expert ? std::optional(expert->number) : std::nullopt);
    if (entry.what == ModelEntry::What::Param) experts_[entry.param] = experts_of_entries_.back();
    add_chunks_of(entry.name);
    if (places_.size() == starts_.back()) {  // somewhere: torch_dist does not say where
      places_.push_back(0);
      unknown_.push_back(i);
    }
    starts_.push_back(static_cast<uint32_t>(places_.size()));
    for (const uint32_t chunk : chunks_of_entry(i)) entries_[chunk].push_back(i);
  }
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const ModelChunk& here = chunks_[chunk];
    const bool has_copy = here.has_output && !here.has_embedding && here.mtp_layers.count == 0;
    if (has_copy) put_copy_at_output(entries_[chunk]);
  }
}

// The copy of tied embeddings in the last stage is its output layer.
void Placement::put_copy_at_output(std::vector<uint32_t>& entries) const {
  const auto name_of = [&](uint32_t entry) -> const std::string& {
    return state_.model[entry].name;
  };
  const auto copy = std::ranges::find_if(
      entries, [&](uint32_t entry) { return without_submodel(name_of(entry)) == kWordEmbeddings; });
  if (copy == entries.end()) return;
  const ModelPlace place = rules_of(state_).find(kOutputLayer)->place;
  const auto behind = std::find_if(copy + 1, entries.end(), [&](uint32_t entry) {
    const auto found = rules_of(state_).find(name_of(entry));
    return found && place < found->place;
  });
  std::rotate(copy, copy + 1, behind);
}

// Which of the stages has what is in no layer: by the part of the model that it is of.
bool Placement::is_in(const ModelChunk& chunk, const std::string& name) const {
  const std::string_view own = without_submodel(name);
  const bool has_embedding = chunk.has_embedding || chunk.mtp_layers.count > 0;
  if (own.starts_with("embedding.")) return has_embedding;
  if (is_behind_layers(own)) return contains(chunk.layers, grid_.pipeline.num_layers - 1);
  const bool is_of_hybrid = own.starts_with("decoder.final_norm.");  // its last chunk may be empty
  if (own.starts_with("output_layer.") || is_of_hybrid) return chunk.has_output;
  const auto found = rules_of(state_).find(name);
  if (found && found->rule->part == ModelPart::Output) return chunk.has_output;
  if (found && found->rule->part == ModelPart::Vision) return chunk.has_embedding;
  return chunks_.size() == 1;
}

void Placement::add_chunks_of(const std::string& name) {
  const std::string& divided = state_.facts.divided_stack;
  const auto in_stack = split_stack(name);
  const bool is_divided = in_stack && in_stack->stack == divided;
  const auto mtp = split_mtp_layer(name);
  if (without_submodel(name) == kWordEmbeddings) {
    for (const size_t chunk : chunks_with_word_embeddings(chunks_, state_.facts.output_is_tied)) {
      places_.push_back(static_cast<uint32_t>(chunk));
    }
    return;
  }
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const ModelChunk& chunk = chunks_[i];
    const bool is_here =
        is_divided ? contains(chunk.layers, in_stack->layer)
        : mtp      ? contains(chunk.mtp_layers, mtp->layer)
        : in_stack ? chunks_.size() == 1 || (chunk.has_embedding && in_stack->stack == kVisionStack)
                   : is_in(chunk, name);
    if (is_here) places_.push_back(i);
  }
  if (places_.size() == starts_.back() && (is_divided || mtp)) {
    throw Error(
        ErrorCode::Corrupt, {.file = {}, .key = name},
        "belongs to a layer beyond args.num_layers = " + std::to_string(grid_.pipeline.num_layers));
  }
}

void Placement::require_known_stages() const {
  for (const uint32_t entry : unknown_) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = state_.model[entry].name},
                "it is not known which pipeline stage has it",
                "--pp 1, or " + row_for(state_, state_.model[entry].name));
  }
}

std::vector<HeldEntry> Placement::held(uint32_t stage, uint32_t expert_rank) const {
  const ExpertRange experts =
      state_.facts.expert_count == 0
          ? ExpertRange{}
          : experts_on(state_.facts.expert_count, expert_rank, grid_.sizes.expert_parallel);
  std::vector<HeldEntry> held;
  for (uint32_t i = stage; i < chunks_.size(); i += grid_.pipeline.pipeline_parallel) {
    for (const uint32_t entry : entries_[i]) {
      const auto& expert = experts_of_entries_[entry];
      if (expert && (*expert < experts.first || *expert - experts.first >= experts.count)) continue;
      held.push_back({entry, chunks_[i].chunk});
    }
  }
  return held;
}

std::string Placement::name_on_rank(const HeldEntry& held, uint32_t stage,
                                    uint32_t expert_rank) const {
  const ModelChunk& chunk = chunks_[chunk_index(grid_.pipeline, held.chunk, stage)];
  const RankPart part = rank_part(state_, grid_, chunk, expert_rank);
  const std::string& name = state_.model[held.entry].name;
  return optim::name_on_rank(name, part).value_or(name);
}

uint32_t Placement::stage_of_entry(uint32_t entry) const {
  return chunks_[chunks_of_entry(entry)[0]].stage;
}

bool Placement::is_first_copy(const HeldEntry& held, uint32_t stage) const {
  return chunks_of_entry(held.entry)[0] == chunk_index(grid_.pipeline, held.chunk, stage);
}

uint32_t Placement::expert_rank(uint32_t param) const {
  const auto& expert = experts_[param];
  if (!expert) return 0;
  return *expert / (state_.facts.expert_count / grid_.sizes.expert_parallel);
}

uint32_t Placement::tensor_ranks(uint32_t param) const {
  if (!state_.params[param].sharing.is_split()) return 1;
  return optim::tensor_ranks(grid_.sizes, is_expert(param));
}

uint32_t Placement::tensor_rank(uint32_t param, const RankCoordinates& rank) const {
  if (tensor_ranks(param) == 1) return 0;
  return rank.tensor_rank(is_expert(param));
}

Extents Placement::shape_of(uint32_t param) const {
  const TrainedParam& of = state_.params[param];
  Extents shape = of.weight->shape;
  if (has_vocabulary_[param] && !shape.empty()) shape[0] = vocabulary_rows_;
  return shape;
}

Split Placement::split_of_param(uint32_t param) const {
  Split split = *state_.params[param].sharing.split;
  const Extents shape = shape_of(param);
  if (split.sections.size() == 1) split.sections[0] = shape[split.dim];
  return split;
}

std::vector<Box> Placement::boxes(uint32_t param, uint32_t tensor_rank) const {
  const uint32_t ranks = tensor_ranks(param);
  const Extents shape = shape_of(param);
  if (ranks == 1) return {ckpt::whole(shape)};
  return boxes_of(shape, split_of_param(param), {tensor_rank, ranks});
}

std::vector<Box> Placement::blocks(uint32_t param, uint32_t tensor_rank) const {
  const Extents shape = shape_of(param);
  if (!state_.params[param].sharing.is_split()) return {ckpt::whole(shape)};
  return blocks_of(shape, split_of_param(param), {tensor_rank, tensor_ranks(param)});
}

Extents Placement::shape_on_rank(uint32_t param) const {
  const uint32_t ranks = tensor_ranks(param);
  if (ranks == 1) return shape_of(param);
  return optim::shape_on_rank(shape_of(param), split_of_param(param), ranks);
}

// The reference's deal, stage by stage. Source: LayerWiseDistributedOptimizer.shard_params of
// megatron/core/optimizer/layer_wise_optimizer.py: over the shapes on a rank, experts apart.
RankDeals::RankDeals(const TrainingState& state, const Placement& placement,
                     const std::vector<ParamGroup>& groups, Policy policy)
    : state_(state), placement_(placement), groups_(groups), policy_(policy) {
  group_of_.assign(state.params.size(), kNoGroup);
  for (uint32_t group = 0; group < groups.size(); ++group) {
    for (const GroupedParam& param : groups[group].params) group_of_[param.index] = group;
  }
  const ParallelSizes& sizes = placement.grid().sizes;
  for (uint32_t stage = 0; stage < sizes.pipeline_parallel; ++stage) {
    for (uint32_t expert = 0; expert < sizes.expert_parallel; ++expert) {
      stages_.emplace(std::pair(stage, expert), deal_stage(stage, expert));
    }
  }
}

RankDeals::Stage RankDeals::deal_stage(uint32_t stage, uint32_t expert_rank) const {
  Stage dealt;
  std::vector<std::vector<uint32_t>> held_of_group(groups_.size());
  for (const HeldEntry& held : placement_.held(stage, expert_rank)) {
    const ModelEntry& entry = state_.model[held.entry];
    if (entry.what != ModelEntry::What::Param || group_of_[entry.param] == kNoGroup) continue;
    held_of_group[group_of_[entry.param]].push_back(static_cast<uint32_t>(dealt.held.size()));
    dealt.held.push_back(held);
  }
  std::vector<ParamGroup> local;
  for (size_t group = 0; group < groups_.size(); ++group) {
    ParamGroup here{.is_expert_parallel = groups_[group].is_expert_parallel};
    here.updated_by = groups_[group].updated_by;
    here.optimizer_index = groups_[group].optimizer_index;
    here.params.reserve(held_of_group[group].size());
    for (const uint32_t index : held_of_group[group]) {
      const uint32_t param = state_.model[dealt.held[index].entry].param;
      here.params.push_back({index, {}});
      if (is_dealt()) {
        const Extents shape = placement_.shape_on_rank(param);
        here.params.back().info.shape.assign(shape.begin(), shape.end());
      }
      dealt.held_of_id.push_back(index);
    }
    local.push_back(std::move(here));
  }
  // The reference deals nothing where dense parameters have one rank.
  const ParallelSizes& sizes = placement_.grid().sizes;
  const SharingSizes sharing =
      is_dealt() ? SharingSizes{sizes.dp_cp(), sizes.expt_dp()} : SharingSizes{1, 1};
  dealt.ownership = shard_params_over(local, sharing, policy_.ownership);
  return dealt;
}

bool RankDeals::is_dealt() const {
  return policy_.is_sharded && placement_.grid().sizes.dp_cp() > 1;
}

OwnedGroups RankDeals::owned(const RankCoordinates& rank) const {
  const Stage& stage = stages_.at({rank.pp, rank.ep});
  const RankInGroups place = is_dealt() ? RankInGroups{rank.dp_cp, rank.edp} : RankInGroups{};
  OwnedGroups owned;
  for (const auto& ids : stage.ownership.groups_on(place)) {
    owned.emplace_back();
    for (const uint32_t id : ids) owned.back().push_back(stage.held[stage.held_of_id[id]]);
  }
  return owned;
}

}  // namespace optim
