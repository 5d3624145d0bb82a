#include "layouts/group_search.h"

#include <ckpt/inventory.h>
#include <algorithm>
#include <unordered_set>

#include "args/value_place.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

// model_optim_rng.pt: /optimizer/1/optimizer/param_groups; common.pt: the same.
constexpr size_t kDepthMax = 5;
// A chain of optimizers is short: a longer list holds something else.
constexpr size_t kChildrenMax = 1024;

struct Step {
  Value value;
  std::string pointer;
  size_t depth;
  std::optional<Value> scaler = {};  // grad_scaler, which lies beside it
};

// Keys below which optimizers are: of a chain the numbers, as a list's places or a dict's keys; at
// the root any name, of an application or of an optimizer.
bool may_hold_optimizers(const Value& key, size_t depth) {
  if (key.is(Kind::Int)) return true;
  return key.is(Kind::Str) && (depth == 0 || is_optimizer_step(key.text()));
}

void push_children(const Step& step, std::vector<Step>& open) {
  const size_t first = open.size();
  const Value& value = step.value;
  if (value.is(Kind::List) && value.size() <= kChildrenMax) {
    for (size_t i = 0; i < value.size(); ++i) {
      open.push_back({value[i], step.pointer + "/" + std::to_string(i), step.depth + 1});
    }
  } else if (value.is(Kind::Dict) && value.item_count() <= kChildrenMax) {
    const auto scaler = value.find("grad_scaler");
    for (const auto& [key, child] : ckpt::items_of(value)) {
      if (!may_hold_optimizers(key, step.depth)) continue;
      open.push_back(
          {child, step.pointer + escaped_step(ckpt::key_text(key)), step.depth + 1, scaler});
    }
  }
  std::reverse(open.begin() + static_cast<ptrdiff_t>(first), open.end());
}

// Objects that Megatron puts optimizers into: common_state/shard_0_1,
// chained_1.optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1.
bool may_hold_optimizers(const ckpt::ObjectEntry& object) {
  return object.region && (object.key.starts_with("common_state/shard_") ||
                           object.key.find(".optimizer/shard_") != object.key.npos);
}

void search(const Document& document, const std::string& file, std::vector<FoundOptimizer>& found) {
  std::vector<Step> open{{document.tree.root(), "", 0}};
  std::unordered_set<NodeId> seen;
  while (!open.empty()) {
    const Step step = std::move(open.back());
    open.pop_back();
    if (!seen.insert(step.value.id()).second) continue;
    if (step.value.is(Kind::Dict)) {
      const auto groups = step.value.find("param_groups");
      if (groups && groups->is(Kind::List)) {
        found.push_back({file, {}, step.pointer, step.value, *groups, step.scaler});
        continue;
      }
    }
    if (step.depth < kDepthMax) push_children(step, open);
  }
}

}  // namespace

std::vector<FoundOptimizer> find_optimizers(const OpenedTraining& checkpoint) {
  std::vector<FoundOptimizer> found;
  for (const auto& [path, file, document] : documents_of(checkpoint))
    search(*document, file, found);
  for (const ckpt::ObjectEntry& object : checkpoint.catalog().objects) {
    if (!may_hold_optimizers(object)) continue;
    const auto document = std::make_shared<const Document>(checkpoint.read_object(object));
    const size_t first = found.size();
    search(*document, "", found);
    for (size_t i = first; i < found.size(); ++i) {
      found[i].object = object.key;
      found[i].document = document;
    }
  }
  return found;
}

std::optional<std::string> group_identity(const Value& group) {
  if (!group.is(Kind::Dict)) return std::nullopt;
  std::string identity;
  for (const std::string name : {"wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr"}) {
    auto value = group.find(name);
    if (!value) value = group.find("pre_" + name);
    if (!value) return std::nullopt;
    const bool is_number = value->is(Kind::Int) || value->is(Kind::Float) || value->is(Kind::Bool);
    identity += (identity.empty() ? "" : ", ") + name + " " +
                (is_number ? std::to_string(value->as_float()) : ckpt::key_text(*value));
  }
  return identity;
}

}  // namespace optim
