// Source: nemo/lightning/io/mixin.py, pytorch/strategies/megatron_strategy.py, _strategy_lib.py and
// megatron_parallel.py of NeMo 2.4.
#include "args/nemo_args.h"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/files_beside.h>
#include <ckpt/folder_convention.h>

#include "args/bridge_args.h"
#include "model/tensor_names.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

using std::string_view;

// In front of a parameter's name: "chained_0.optimizer.state.exp_avg.module.NAME".
constexpr string_view kWrapper = "module.";

size_t begin_of_name(const std::string& key) {
  constexpr string_view kState = "optimizer.state.";
  const string_view own = split_chain(key).key;
  size_t at = key.size() - own.size();
  if (own.starts_with(kState)) {
    const size_t dot = own.find('.', kState.size());
    at = dot == own.npos ? key.size() : at + dot + 1;
  }
  return at;
}

std::string megatron_key(const std::string& key) {
  const size_t at = begin_of_name(key);
  std::string name = key;
  if (string_view(key).substr(at).starts_with(kWrapper)) name.erase(at, kWrapper.size());
  return name;
}

// Of common.pt: "/optimizer/0/..." of the one optimizer that Lightning's list holds.
std::string megatron_pointer(const std::string& pointer) {
  constexpr string_view kFirst = "/optimizer/0/";
  if (!pointer.starts_with(kFirst)) return pointer;
  return "/optimizer/" + pointer.substr(kFirst.size());
}

std::optional<Value> find(const std::optional<Value>& dict, string_view key) {
  return dict && dict->is(Kind::Dict) ? dict->find(key) : std::nullopt;
}

// Of one optimizer, or of a chain by numbers.
std::vector<Value> groups_in(const Value& state) {
  std::vector<Value> optimizers, groups;
  if (find(state, "optimizer")) {
    optimizers.push_back(state);
  } else if (state.is(Kind::Dict)) {
    for (size_t i = 0; i < state.item_count(); ++i) optimizers.push_back(state.item(i).second);
  }
  for (const Value& optimizer : optimizers) {
    const auto list = find(find(optimizer, "optimizer"), "param_groups");
    for (size_t i = 0; list && list->is(Kind::List) && i < list->size(); ++i) {
      if ((*list)[i].is(Kind::Dict)) groups.push_back((*list)[i]);
    }
  }
  return groups;
}

// Factors of a group, which NeMo calls pre_... once they are in its lr and weight_decay.
constexpr string_view kFactors[] = {"wd_mult", "lr_mult"};
std::string applied(string_view factor) { return "pre_" + std::string(factor); }
constexpr string_view kBounds[] = {"min_lr", "max_lr"};

void rename(ValueTree& tree, const Value& group, string_view from, string_view to) {
  const auto value = group.find(from);
  if (!value || group.find(to)) return;
  const NodeId id = value->id();
  tree.put(group.id(), to, id);
  tree.erase(group.id(), from);
}

// A schedule of Lightning has a rate for each group of the optimizer, and experts of several
// expert-parallel ranks have groups of their own: equal rates are one, until they are written.
template <class Change>
void for_rates(ValueTree& tree, const std::optional<Value>& schedules, const Change& change) {
  for (size_t i = 0; schedules && schedules->is(Kind::List) && i < schedules->size(); ++i) {
    for (const string_view name : {"base_lrs", "_last_lr"}) {
      const auto rates = find((*schedules)[i], name);
      if (!rates || !rates->is(Kind::List) || rates->size() == 0) continue;
      const size_t count = change(*rates, "/lr_schedulers/" + std::to_string(i) + "/", name);
      if (count == rates->size()) continue;
      const std::vector<NodeId> changed(count, (*rates)[0].id());
      tree.put((*schedules)[i].id(), name, tree.sequence(Kind::List, changed));
    }
  }
}

void join_equal_rates(ValueTree& tree, const Value& schedules) {
  for_rates(tree, schedules, [](const Value& rates, const std::string&, string_view) -> size_t {
    for (size_t i = 1; i < rates.size(); ++i) {
      if (first_difference(rates[0], rates[i])) return rates.size();
    }
    return 1;
  });
}

void state_rates_of_groups(ValueTree& tree, const std::optional<Value>& schedules, size_t groups) {
  for_rates(tree, schedules, [&](const Value& rates, std::string key, string_view name) {
    if (rates.size() == 1 || rates.size() == groups) return groups;
    throw Error(ErrorCode::Unsupported, {"weights/common.pt", std::nullopt, key.append(name)},
                "has different rates for " + std::to_string(rates.size()) +
                    " groups, of which these sizes make " + std::to_string(groups),
                "--optimizer-sharding fully_reshardable writes a folder of Megatron-LM");
  });
}

class Translation {
 public:
  explicit Translation(const Value& root) : root_(root), to_(tree_.dict()) {}

  ValueTree run() {
    for (const auto& [key, value] : ckpt::items_of(root_)) {
      const bool is_list = key.is(Kind::Str) && key.text() == "optimizer" && value.is(Kind::List) &&
                           value.size() == 1;
      tree_.set_item(to_, tree_.copy(key), is_list ? optimizer(value[0]) : tree_.copy(value));
    }
    if (const auto schedules = tree_.value(to_).find("lr_schedulers")) {
      join_equal_rates(tree_, *schedules);
    }
    tree_.put(to_, "checkpoint_version", tree_.real(3.0));
    if (const auto step = root_.find("global_step")) {
      tree_.put(to_, "iteration", tree_.copy(*step));
    }
    if (root_.find("optimizer")) tree_.put(to_, "opt_param_scheduler", scheduler());
    tree_.set_root(to_);
    return std::move(tree_);
  }

 private:
  // A bound that is not set is None.
  NodeId optimizer(const Value& state) {
    const NodeId copy = tree_.copy(state);
    for (const Value& group : groups_in(tree_.value(copy))) {
      for (const string_view name : kFactors) rename(tree_, group, applied(name), name);
      for (const string_view name : kBounds) {
        const auto value = group.find(name);
        if (value && value->is_none()) tree_.erase(group.id(), name);
      }
    }
    return copy;
  }

  // Megatron loads no optimizer without one, and takes num_steps, the samples, alone where it is
  // started with --override-opt-param-scheduler. None: not stated, which no other start takes.
  NodeId scheduler() {
    const NodeId state = tree_.dict();
    for (const string_view name :
         {"max_lr", "lr_warmup_steps", "num_steps", "lr_decay_style", "lr_decay_steps", "min_lr",
          "start_wd", "end_wd", "wd_incr_style", "wd_incr_steps"}) {
      tree_.put(state, name, tree_.none());
    }
    for (size_t i = 0; i < root_.item_count(); ++i) {  // the state of a data module
      const auto samples = find(root_.item(i).second, "consumed_samples");
      if (samples && samples->is(Kind::Int)) tree_.put(state, "num_steps", tree_.copy(*samples));
    }
    return state;
  }

  const Value& root_;
  ValueTree tree_;
  NodeId to_;
};

// NeMo's module calls the model "module".
ckpt::Catalog with_megatron_keys(const ckpt::Catalog& stored) {
  ckpt::Catalog catalog = stored;
  for (TensorEntry& tensor : catalog.tensors) {
    tensor.key = tensor.file.empty() ? megatron_key(tensor.key) : megatron_pointer(tensor.key);
  }
  for (ckpt::ObjectEntry& object : catalog.objects) object.key = megatron_key(object.key);
  catalog.index();
  return catalog;
}

}  // namespace

std::string nemo_key(const std::string& key) {
  std::string name = key;
  return name.insert(begin_of_name(key), kWrapper);
}

void make_common_of_nemo(ValueTree& tree, NodeId common) {
  for (const string_view name : {string_view("args"), string_view("checkpoint_version"),
                                 string_view("iteration"), kSchedulerOfNemo}) {
    tree.erase(common, name);
  }
  const auto optimizer = tree.value(common).find("optimizer");
  if (!optimizer) return;
  for (const Value& group : groups_in(*optimizer)) {
    if (!group.find("pre_mult_lr")) continue;  // before NeMo applied them
    for (const string_view name : kFactors) rename(tree, group, name, applied(name));
    for (const string_view name : kBounds) {
      if (!group.find(name)) tree.put(group.id(), name, tree.none());
    }
  }
  const size_t group_count = groups_in(*optimizer).size();
  state_rates_of_groups(tree, tree.value(common).find("lr_schedulers"), group_count);
  const NodeId one = optimizer->id();
  tree.put(common, "optimizer", tree.list({one}));
}

std::string nemo_config(const ckpt::Checkpoint& checkpoint) {
  const ckpt::FolderConvention* const convention = checkpoint.convention();
  const bool is_below = convention != nullptr && checkpoint.was_root() &&
                        checkpoint.folder().filename() == convention->state_folder;
  if (!is_below) return {};
  std::string text = ckpt::text_beside(checkpoint, std::string("../") + kNemoConfig);
  return text.find("_target_: nemo.") == text.npos ? std::string() : text;
}

void translate_nemo(const std::string& config, const ckpt::Catalog& stored, CommonState& state) {
  const Value root = state.document->tree.root();
  if (!root.is(Kind::Dict) || root.find("args")) return;
  auto catalog = std::make_shared<const ckpt::Catalog>(with_megatron_keys(stored));
  auto document = std::make_shared<Document>();
  ValueTree& tree = document->tree = Translation(root).run();
  const ValueTree args = args_of_nemo(config, stated_sharding(tree.root()), *catalog);
  tree.put(tree.root().id(), "args", tree.copy(*args.root().find("args")));
  document->storages = state.document->storages;
  state.document = std::move(document);
  state.catalog = std::move(catalog);
}

}  // namespace optim
