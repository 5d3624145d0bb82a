// A training state as ckpt::hash() and ckpt::diff() take it.
#include <training/logical_inventory.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "parallel/stages.h"
#include "state/state_values.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

// Where the run wrote to and read from, in which format, on which ranks, and what follows from
// these (docs/formats/canonical_encoding.md has this list).
constexpr std::string_view kArgsLeftOut[] = {"save",
                                             "load",
                                             "ckpt_format",
                                             "use_dist_ckpt",
                                             "dist_ckpt_optim_fully_reshardable",
                                             "distrib_optim_fully_reshardable_mem_efficient",
                                             "rank",
                                             "local_rank",
                                             "world_size",
                                             "inprocess_active_world_size",
                                             "data_parallel_size",
                                             "context_parallel_size",
                                             "tensor_model_parallel_size",
                                             "pipeline_model_parallel_size",
                                             "transformer_pipeline_model_parallel_size",
                                             "virtual_pipeline_model_parallel_size",
                                             "num_virtual_stages_per_pipeline_rank",
                                             "num_layers_per_virtual_pipeline_stage",
                                             "pipeline_model_parallel_layout",
                                             "decoder_first_pipeline_num_layers",
                                             "decoder_last_pipeline_num_layers",
                                             "account_for_embedding_in_pipeline_split",
                                             "account_for_loss_in_pipeline_split",
                                             "expert_model_parallel_size",
                                             "expert_tensor_parallel_size",
                                             "tensor_parallel_num_weight_shards",
                                             "expert_tensor_parallel_num_weight_shards",
                                             "sequence_parallel",
                                             "overlap_p2p_comm",
                                             "align_param_gather",
                                             "padded_vocab_size",
                                             "ddp_bucket_size",
                                             "num_distributed_optimizer_instances",
                                             "inference_cuda_graph_scope",
                                             "cuda_graph_modules"};

void leave_out_args(ValueTree& tree, NodeId args) {
  for (const std::string_view key : kArgsLeftOut) tree.erase(args, key);
  for (const std::string_view key : kHybridPatterns) {  // without the ends of pipeline stages
    const auto pattern = tree.value(args).find(key);
    if (!pattern || !pattern->is(Kind::Str)) continue;
    std::string kinds(pattern->text());
    std::erase(kinds, '|');
    tree.put(args, key, tree.str(kinds));
  }
}

// Parameters by the settings that they have: which groups these make depends on the sizes.
struct Settings {
  NodeId group;
  std::vector<std::string> params;  // sorted
};

// Optimizers [first, last) of the chain.
struct Optimizers {
  uint32_t first = 0, last = 0;
};

std::vector<Settings> settings_of(ValueTree& tree, const FiledState& state, Optimizers of) {
  std::map<NodeId, std::vector<std::string>> by_group;
  for (const TrainedParam& param : state.params) {
    const bool is_here = param.optimizer >= of.first && param.optimizer < of.last;
    if (!param.info.requires_grad || !is_here) continue;
    const std::vector<NodeId>& groups = state.chain[param.optimizer].groups;
    if (param.group < groups.size()) by_group[groups[param.group]].push_back(param.info.name);
  }
  std::vector<Settings> all;
  for (auto& [group, params] : by_group) {
    tree.erase(group, "is_expert_parallel");
    const auto same = std::ranges::find_if(all, [&, own = group](const Settings& known) {
      return !first_difference(tree.value(known.group), tree.value(own));
    });
    if (same == all.end()) {
      all.push_back({group, std::move(params)});
    } else {
      same->params.insert(same->params.end(), params.begin(), params.end());
    }
  }
  for (Settings& settings : all) std::ranges::sort(settings.params);
  std::ranges::sort(all, {}, [](const Settings& settings) { return settings.params.front(); });
  return all;
}

NodeId add_settings(ValueTree& tree, const FiledState& state, Optimizers of) {
  const NodeId list = tree.list();
  for (const Settings& settings : settings_of(tree, state, of)) {
    std::vector<NodeId> names;
    for (const std::string& name : settings.params) names.push_back(tree.str(name));
    tree.put(settings.group, "params", tree.sequence(Kind::List, names));
    tree.append(list, settings.group);
  }
  return list;
}

bool is_of_experts(const ValueTree& tree, const ChainedOptimizerState& optimizer) {
  return std::ranges::all_of(optimizer.groups, [&](NodeId node) {
    const auto flag = tree.value(node).find("is_expert_parallel");
    return flag && flag->is(Kind::Bool) && flag->as_bool();
  });
}

// Whether an optimizer has the experts of the parameters that the one before it would have with one
// expert parallel rank.
bool is_continued(const ValueTree& tree, const FiledState& state, size_t index) {
  if (index == 0 || state.filed.is_layer_wise) return false;
  const ChainedOptimizerState &dense = state.chain[index - 1], &experts = state.chain[index];
  return is_of_experts(tree, experts) && !is_of_experts(tree, dense) &&
         are_alike(tree, experts, dense);
}

// The chain without what expert parallelism makes of it.
std::vector<Optimizers> optimizers_of(const ValueTree& tree, const FiledState& state) {
  std::vector<Optimizers> all;
  for (uint32_t i = 0; i < state.chain.size(); ++i) {
    if (is_continued(tree, state, i)) {
      all.back().last = i + 1;
    } else {
      all.push_back({i, i + 1});
    }
  }
  return all;
}

// {param_groups, step (where parameters count steps: a tensor's bytes, or a number), further keys}.
NodeId add_optimizer(ValueTree& tree, const FiledState& state, Optimizers of) {
  const ChainedOptimizerState& optimizer = state.chain[of.first];
  const NodeId object = tree.dict();
  tree.put(object, "param_groups", add_settings(tree, state, of));
  if (optimizer.step_layout == StepLayout::PerParam) {
    const NodeId dtype = tree.str(ckpt::name(optimizer.step_dtype));
    tree.put(object, "step", tree.tuple({dtype, tree.bytes(optimizer.step_bytes)}));
  }
  if (optimizer.step_layout == StepLayout::PerParamNumber) {
    tree.put(object, "step", tree.integer(optimizer.step_number));
  }
  for (const auto& [key, value] : optimizer.others) tree.put(object, key, value);
  if (!optimizer.inner_others.empty()) {
    const NodeId inner = tree.dict();
    for (const auto& [key, value] : optimizer.inner_others) tree.put(inner, key, value);
    tree.put(object, "optimizer", inner);
  }
  return object;
}

// {rank: value}.
NodeId add_rank_item(ValueTree& tree, const RankItem& item) {
  const NodeId values = tree.dict();
  for (const auto& [rank, value] : item.values) tree.set_item(values, tree.integer(rank), value);
  return values;
}

std::string place_of(const RankRng& rng) {
  return "TP " + std::to_string(rng.tensor) + ", PP " + std::to_string(rng.pipeline) + ", EP " +
         std::to_string(rng.expert);
}

bool is_of_stage(const RankRng& a, const RankRng& b) {
  return a.tensor == b.tensor && a.pipeline == b.pipeline;
}

// What the rank at this place starts from, of its expert parallel ranks the first one's where the
// container stores one for all; null: nothing is stored for it.
const RankRng* rng_at(const FiledState& checkpoint, const RankRng& place) {
  const RankRng* of_all = nullptr;
  uint32_t count = 0;
  for (const RankRng& rng : checkpoint.rng_states) {
    if (!is_of_stage(rng, place)) continue;
    if (rng.expert == place.expert) return &rng;
    of_all = &rng;
    ++count;
  }
  return count == 1 ? of_all : nullptr;
}

// Places for which either of them has a random state.
std::vector<RankRng> rng_places(const FiledState& a, const FiledState& b) {
  std::vector<RankRng> places = a.rng_states;
  for (const RankRng& rng : b.rng_states) {
    const bool is_known = std::ranges::any_of(a.rng_states, [&](const RankRng& other) {
      return is_of_stage(rng, other) && rng.expert == other.expert;
    });
    if (!is_known) places.push_back(rng);
  }
  return places;
}

void add_rng_states(const FiledState& checkpoint, const std::vector<RankRng>& places,
                    ckpt::Inventory& inventory) {
  auto common = std::make_shared<Document>(checkpoint.common);
  for (const RankRng& place : places) {
    const RankRng* const rng = rng_at(checkpoint, place);
    if (rng == nullptr) continue;
    std::string key = "rng_state";
    if (places.size() > 1) key += " of " + place_of(place);
    inventory.objects.push_back({"", std::move(key), common, rng->value, false});
  }
}

constexpr const char* kCommon = "common.";

// The args that are left out, in the order of the file.
NodeId add_args_left_out(ValueTree& tree, const Value& args) {
  const NodeId left_out = tree.dict();
  for (const auto& [key, value] : ckpt::items_of(args)) {
    const bool is_out =
        key.is(Kind::Str) && std::ranges::find(kArgsLeftOut, key.text()) != std::end(kArgsLeftOut);
    if (is_out) tree.set_item(left_out, key.id(), value.id());
  }
  return left_out;
}

// {"optimizer.0": [settings of each group]}: their number and order depend on the sizes.
NodeId add_groups(ValueTree& tree, const FiledState& state) {
  const NodeId optimizers = tree.dict();
  for (size_t i = 0; i < state.chain.size(); ++i) {
    const NodeId groups = tree.sequence(Kind::List, state.chain[i].groups);
    tree.put(optimizers, "optimizer." + std::to_string(i), groups);
  }
  return optimizers;
}

// {place in the grid: random state}.
void add_rng_of_places(const FiledState& checkpoint, ckpt::Inventory& inventory) {
  auto common = std::make_shared<Document>(checkpoint.common);
  const NodeId places = common->tree.dict();
  for (const RankRng& rng : checkpoint.rng_states) {
    common->tree.put(places, place_of(rng), rng.value);
  }
  inventory.objects.push_back({"", std::string(kCommon) + "rng_state", common, places, false});
}

ckpt::Inventory left_out_inventory(const FiledState& checkpoint) {
  auto common = std::make_shared<Document>(checkpoint.common);
  ckpt::Inventory inventory;
  const auto add = [&](const std::string& key, NodeId root) {
    inventory.objects.push_back({"", kCommon + key, common, root, false});
  };
  const Value args = common->tree.value(checkpoint.args().id());  // a copy keeps its ids
  add("args", add_args_left_out(common->tree, args));
  add("groups", add_groups(common->tree, checkpoint));
  if (const auto counters = common->tree.root().find("rerun_state_machine")) {
    add("rerun_state_machine", counters->id());
  }
  return inventory;
}

}  // namespace

ckpt::Inventory logical_inventory(const FiledState& checkpoint) {
  auto common = std::make_shared<Document>(checkpoint.common);
  ValueTree& tree = common->tree;
  const NodeId args = checkpoint.args().id();  // a copy keeps its ids
  leave_out_args(tree, args);

  ckpt::Inventory inventory;
  const std::vector<TensorRef> tensors = tensors_of(checkpoint);
  inventory.tensors.reserve(tensors.size());
  for (const TensorRef& tensor : tensors) inventory.tensors.push_back(*tensor);
  const auto add = [&](std::string key, NodeId root) {
    inventory.objects.push_back({"", std::move(key), common, root, false});
  };
  for (const auto& [key, value] : ckpt::items_of(tree.root())) {
    // What belongs to the ranks of one run: random states follow their places in the model.
    const bool is_of_ranks = key.text() == "rerun_state_machine" || key.text() == "rng_state";
    if (!is_of_ranks) add(std::string(key.text()), value.id());
  }
  const std::vector<Optimizers> optimizers = optimizers_of(tree, checkpoint);
  for (size_t i = 0; i < optimizers.size(); ++i) {
    add("optimizer." + std::to_string(i), add_optimizer(tree, checkpoint, optimizers[i]));
  }
  for (const RankItem& item : checkpoint.rank_items) add(item.name, add_rank_item(tree, item));
  for (const auto& [name, states] : checkpoint.expert_states) {
    for (size_t i = 0; i < states.size(); ++i) {
      inventory.objects.push_back({"", name + " of expert " + std::to_string(i), states[i],
                                   states[i]->tree.root().id(), false});
    }
  }
  for (const ModelEntry& entry : checkpoint.model) {
    if (!entry.object) continue;
    const auto& state = checkpoint.extra_states[*entry.object];
    if (!holds_bytes(*state)) continue;  // one container has these, the other does not
    inventory.objects.push_back({"", entry.name, state, state->tree.root().id(), false});
  }
  return inventory;
}

std::pair<ckpt::Inventory, ckpt::Inventory> logical_inventories(const FiledState& a,
                                                                const FiledState& b) {
  std::pair<ckpt::Inventory, ckpt::Inventory> both = {logical_inventory(a), logical_inventory(b)};
  if (a.grid.sizes == b.grid.sizes) {
    const std::vector<RankRng> places = rng_places(a, b);
    add_rng_states(a, places, both.first);
    add_rng_states(b, places, both.second);
  }
  return both;
}

std::pair<ckpt::Inventory, ckpt::Inventory> left_out_inventories(const FiledState& a,
                                                                 const FiledState& b) {
  std::pair<ckpt::Inventory, ckpt::Inventory> both = {left_out_inventory(a), left_out_inventory(b)};
  if (a.grid.sizes != b.grid.sizes) {
    add_rng_of_places(a, both.first);
    add_rng_of_places(b, both.second);
  }
  return both;
}

}  // namespace optim
