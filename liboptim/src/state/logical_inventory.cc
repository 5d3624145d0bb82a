// A training state as ckpt::hash() and ckpt::diff() take it.
#include <optim/logical_inventory.h>

#include <algorithm>
#include <string_view>

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

// Where the run wrote to, in which format, and on how many ranks.
constexpr std::string_view kArgsLeftOut[] = {"save",          "ckpt_format",
                                             "use_dist_ckpt", "data_parallel_size",
                                             "world_size",    "inprocess_active_world_size"};

// One random state for each rank is indexed by data-parallel rank, and has no meaning at another
// size.
bool is_per_rank(const Value& rng_state, const Value& args) {
  const auto flag = args.find("data_parallel_random_init");
  const bool random_init = flag && flag->is(Kind::Bool) && flag->as_bool();
  return random_init || (rng_state.is(Kind::List) && rng_state.size() > 1);
}

bool is_left_out(std::string_view key, const Value& value, const Value& args) {
  return key == "rerun_state_machine" || (key == "rng_state" && is_per_rank(value, args));
}

NodeId add_groups(ValueTree& tree, const ChainedOptimizerState& optimizer) {
  const NodeId groups = tree.list();
  for (const NodeId group : optimizer.groups) tree.append(groups, group);
  return groups;
}

// {param_groups, step (where parameters count steps: a tensor's bytes, or a number), further keys}.
NodeId add_optimizer(ValueTree& tree, const ChainedOptimizerState& optimizer) {
  const NodeId object = tree.dict();
  tree.put(object, "param_groups", add_groups(tree, optimizer));
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

}  // namespace

ckpt::Inventory logical_inventory(const TrainingState& checkpoint) {
  auto common = std::make_shared<ckpt::Document>(checkpoint.common);
  ValueTree& tree = common->tree;
  const NodeId args = checkpoint.args().id();  // a copy keeps its ids
  for (const std::string_view key : kArgsLeftOut) tree.erase(args, key);

  ckpt::Inventory inventory;
  for (const TensorRef& tensor : tensors_of(checkpoint)) inventory.tensors.push_back(*tensor);
  const auto add = [&](std::string key, NodeId root) {
    inventory.objects.push_back({"", std::move(key), common, root, false});
  };
  for (size_t i = 0; i < tree.root().item_count(); ++i) {
    const auto [key, value] = tree.root().item(i);
    if (is_left_out(key.text(), value, tree.value(args))) continue;
    add(std::string(key.text()), value.id());
  }
  for (size_t i = 0; i < checkpoint.chain.size(); ++i) {
    add("optimizer." + std::to_string(i), add_optimizer(tree, checkpoint.chain[i]));
  }
  for (const RankItem& item : checkpoint.rank_items) add(item.name, add_rank_item(tree, item));
  for (const ModelEntry& entry : checkpoint.model) {
    if (!entry.object) continue;
    const auto& state = checkpoint.extra_states[*entry.object];
    inventory.objects.push_back({"", entry.name, state, state->tree.root().id(), false});
  }
  return inventory;
}

}  // namespace optim
