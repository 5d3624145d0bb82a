// Reads the training state of a torch_dist folder: keys name the parameters, stacked over layers
// and experts; the common state lies in common.pt or in the store.
#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include <optim/rule_table.h>

#include "args/common_state.h"
#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "grid/sharing_of_params.h"
#include "layouts/job/filing_hooks.h"
#include "layouts/job/tensor_attributes.h"
#include "layouts/parts/precision_aware.h"
#include "layouts/parts/stacked_layers.h"
#include "layouts/parts/store_errors.h"
#include "layouts/parts/tensor_parts.h"
#include "layouts/torch_dist/common_optimizers.h"
#include "layouts/torch_dist/readers.h"
#include "layouts/torch_dist/store_chunks.h"
#include "layouts/torch_dist/store_objects.h"
#include "model/tensor_names.h"
#include "state/remainders.h"
#include "state/state_values.h"
#include "state/words.h"

namespace optim {
namespace {

// Its place among the states of one parameter, as the optimizers create them.
size_t state_place(const std::string& state) {
  const auto known = all_states();
  return static_cast<size_t>(std::ranges::find(known, state, &StateSpec::name) - known.begin());
}

using store_errors::corrupt;
using store_errors::unsupported;

class LayerWiseReader {
 public:
  LayerWiseReader(const StoredState& stored, const ReadOptions& options, const Filing& filing)
      : source_(stored.source),
        catalog_(stored.catalog),
        keys_are_names_(stored.keys_are_names),
        filing_(filing),
        model_only_(options.model_only),
        options_(options),
        stated_(stored.common),
        document_(*stated_.document) {
    for (const Filing* const one : filings()) {
      if (one->in_store == nullptr) continue;
      auto found = one->in_store->find(catalog_);
      auto optimizers = found->optimizers();
      if (optimizers.empty()) continue;
      by_hooks_.merge(optimizers);
      found_by_hooks_.push_back(std::move(found));
    }
  }

  FiledState run() {
    const Value args = attributes_of_args(document_.tree.root(), stated_.file);
    state_.config = stated_.config;
    state_.rules = options_.rules;
    // What was saved without an optimizer has no optimizer's state to miss.
    if (!document_.tree.root().find("optimizer") && !has_states()) model_only_ = true;
    read_args(args, stated_.file, state_);
    read_stacking(args);
    rules_ = key_rules(state_);
    read_names();
    if (!model_only_) check_pairs();
    order_model(state_);
    read_params();
    carry_common();
    if (!model_only_) {
      const std::vector<ParamGroup> groups = group_params(args, state_.grid.sizes, state_.params);
      read_common_optimizers({source_, stated_, by_hooks_}, groups, common_, state_);
      check_chain();
      found_ = std::vector<Found>();  // of 10^6 parameters as much as their flat buffers take
      for (const auto& optimizers : found_by_hooks_) {
        optimizers->read({source_, stated_, groups, common_, state_});
      }
      require_masters();
      take_remainders(args, source_, state_);
    }
    finish_state(state_, common_, source_);
    return std::move(state_);
  }

 private:
  bool has_states() const {
    return std::ranges::any_of(catalog_.tensors, [](const TensorEntry& tensor) {
      return tensor.file.empty() && (store_hooks_of(tensor.key) != nullptr ||
                                     split_chain(tensor.key).key.starts_with(kStatePrefix));
    });
  }

  // What the file holds of one parameter.
  struct Found {
    TensorRef weight, master;
    std::vector<StateTensor> states;
    bool has_distributed_master = false;
    std::optional<uint32_t> optimizer;  // of the chain, where its keys say
    std::string key;                    // that says so
  };

  // --- tensors ---

  // As the file has it, whatever args say.
  void read_stacking(const Value& args) {
    LayerStacks stacks(keys_are_names_ ? LayerStacks::From::StateDicts : LayerStacks::From::Store);
    for (const TensorEntry& tensor : catalog_.tensors) {
      const bool is_weight = tensor.file.empty() && store_hooks_of(tensor.key) == nullptr &&
                             !split_chain(tensor.key).key.starts_with(kStatePrefix);
      if (!is_weight) continue;
      stacks.add(tensor.key, tensor.shape.empty() ? 0 : tensor.shape[0]);
      if (keys_are_names_ && tensor.key == kNormOfHybrids) state_.facts.layers_stacked = false;
      if (!keys_are_names_ && tensor.key.starts_with(kLayersPrefix)) {
        state_.facts.layers_stacked = is_stacked_key(tensor.key);
      }
    }
    stacks.settle(args, state_);
    const auto content = document_.tree.root().find("content_metadata");
    state_.facts.singleton_local_shards =
        content && content->is(Kind::Dict) && is_true(*content, "singleton_local_shards");
  }

  void read_names() {
    ExtraStatesAhead extra_states(source_, catalog_);
    read_tensors();
    read_store_objects({source_, catalog_, rules_, extra_states, keys_are_names_}, common_, state_);
    if (keys_are_names_) add_extra_states();
  }

  // Those that Megatron-FSDP leaves out.
  void add_extra_states() {
    std::set<std::string> known;
    for (const ModelEntry& entry : state_.model) known.insert(entry.name);
    for (const auto& [weight, place] : place_of_) {
      if (!found_[place].weight) continue;
      const size_t dimensions = found_[place].weight->shape.size();
      std::string name = extra_state_beside(weight, dimensions, state_);
      if (name.empty() || !known.insert(name).second) continue;
      state_.model.push_back({ModelEntry::What::ExtraState, std::move(name), 0, std::nullopt});
    }
  }

  void read_tensors() {
    segmented_.emplace(catalog_, rules_);
    const std::vector<TensorEntry>& tensors = catalog_.tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].file.empty() || segmented_->has(i)) continue;  // of common.pt
      read_tensor(tensors[i]);
    }
    for (const TensorEntry& tensor : segmented_->joined()) read_tensor(tensor);
  }

  void read_tensor(const TensorEntry& tensor) {
    const ChainedKey chained = split_chain(tensor.key);
    if (chained.key.starts_with(kStatePrefix)) {
      if (!model_only_) read_state_tensor(tensor, chained);
    } else if (store_hooks_of(tensor.key) == nullptr) {
      add_by_layer(tensor, {}, tensor.key);
    }
  }

  // What a tensor of optimizer state is called; of a weight: nothing.
  struct StateName {
    std::string state;
    std::optional<uint32_t> optimizer;
    bool is_distributed_master = false;
  };

  void read_state_tensor(const TensorEntry& tensor, const ChainedKey& chained) {
    const std::string_view rest = chained.key.substr(kStatePrefix.size());
    const size_t dot = rest.find('.');
    if (dot == rest.npos) corrupt(tensor.key, "does not name a parameter");
    const std::string_view state = rest.substr(0, dot);
    StateName name{std::string(state), chained.optimizer};
    if (state == kDistributedMaster) name = {std::string(kMasterState), chained.optimizer, true};
    const std::string key(rest.substr(dot + 1));
    if (filing_.as_param == nullptr) return add_by_layer(tensor, name, key);
    const TensorEntry* const weight = catalog_.find_tensor(key);
    if (weight == nullptr) corrupt(tensor.key, "does not belong to any parameter of the model");
    add_by_layer(filing_.as_param(tensor, weight->shape), name, key);
  }

  void add_by_layer(const TensorEntry& tensor, const StateName& state, const std::string& key) {
    const StackedAxes axes = keys_are_names_ ? StackedAxes{} : stacked_axes(key, rules_);
    if (axes.count() == 0) return add(tensor, state, {key});
    require_axes(tensor, axes, key);
    std::vector<TensorEntry> parts = unstack(tensor, axes);
    ShardedName sharded{key};
    const uint32_t experts = axes.expert ? rules_.expert_count : 1;
    for (uint32_t i = 0; i < parts.size(); ++i) {
      if (axes.layer) sharded.layer = i / experts;
      if (axes.expert) sharded.expert = i % experts;
      add(std::move(parts[i]), state, sharded);
    }
  }

  void require_axes(const TensorEntry& tensor, StackedAxes axes, const std::string& key) const {
    size_t axis = 0;
    const auto require = [&](uint32_t count, const char* argument) {
      if (axis < tensor.shape.size() && tensor.shape[axis++] == count) return;
      corrupt(tensor.key, "is not stacked over the " + std::to_string(count) + argument);
    };
    if (axes.layer) {
      const LayerStack stack = stack_rules(key, rules_);
      const bool is_stated = stack.prefix == state_.facts.divided_stack;
      require(stack.layers, is_stated ? " layers of args.num_layers" : " layers of other keys");
    }
    if (axes.expert) require(rules_.expert_count, " experts of args.num_experts");
  }

  void add(TensorEntry tensor, const StateName& called, const ShardedName& sharded) {
    std::string name = keys_are_names_ ? sharded.key : state_dict_name(sharded, rules_);
    const std::string& state = called.state;
    const std::string_view first = rules_.table->same_as(name);
    const TensorEntry* const other =
        first.empty() ? nullptr : catalog_.find_tensor(std::string(first));
    if (other != nullptr && state.empty()) return add_other_name(tensor, name, *other);
    if (other != nullptr) name = first;
    const auto [known, added] = place_of_.try_emplace(name, static_cast<uint32_t>(found_.size()));
    if (added) found_.emplace_back();
    Found& found = found_[known->second];
    if (called.optimizer) note_optimizer(tensor.key, *called.optimizer, found);
    if (state.empty()) {
      if (found.weight) corrupt(tensor.key, "holds '" + ckpt::escaped(name) + "' once more");
      state_.model.push_back({ModelEntry::What::Param, name, known->second, std::nullopt});
      found.weight = with_key(std::move(tensor), name);
    } else if (state != kMasterState) {
      if (std::ranges::find(found.states, state, &StateTensor::name) != found.states.end()) {
        corrupt(tensor.key, "its parameter has another such state, too");
      }
      found.states.push_back({state, with_key(std::move(tensor), state_key(state, name))});
    } else if (found.master) {
      corrupt(tensor.key, "its parameter has another master, too");
    } else {
      found.has_distributed_master = called.is_distributed_master;
      found.master = with_key(std::move(tensor), state_key(state, name));
    }
  }

  // The model registers it twice: its bytes are stored twice, its state once.
  void add_other_name(const TensorEntry& tensor, std::string name, const TensorEntry& first) {
    if (!are_equal(first, tensor, source_)) {
      corrupt(tensor.key,
              "differs from '" + ckpt::escaped(first.key) + "', of which it is another name");
    }
    state_.model.push_back({ModelEntry::What::OtherName, name, 0, std::nullopt});
  }

  static void note_optimizer(const std::string& key, uint32_t optimizer, Found& found) {
    if (found.optimizer.value_or(optimizer) != optimizer) {
      corrupt(key,
              "is of a different optimizer of the chain from '" + ckpt::escaped(found.key) + "'");
    }
    found.optimizer = optimizer;
    found.key = key;
  }

  // What keys say of the chain is what the model's parameters make of it.
  void check_chain() {
    state_.filed.optimizers.assign(state_.chain.size(), &filing_);
    for (const auto& [optimizer, filing] : by_hooks_) {
      if (optimizer < state_.chain.size()) state_.filed.optimizers[optimizer] = filing;
    }
    for (size_t i = 0; i < state_.params.size(); ++i) {
      const TrainedParam& param = state_.params[i];
      const Found& found = found_[i];
      const bool is_beside = found.has_distributed_master && !filing_.by_elements;
      if (is_beside) state_.filed.optimizers[param.optimizer] = &kByName;
      if (!found.optimizer || *found.optimizer == param.optimizer) continue;
      corrupt(found.key, "is of optimizer " + std::to_string(*found.optimizer) +
                             " of the chain; expected " + std::to_string(param.optimizer));
    }
  }

  // --- the model in its order ---

  // Every parameter of the model has a master and state, or neither, as frozen ones, and they
  // belong to no other. A loss does not look like these: .metadata would leave bytes of a file
  // unclaimed.
  void check_pairs() {
    const std::string* orphan = nullptr;  // the first in the order of names
    for (const auto& [name, place] : place_of_) {
      if (!found_[place].weight && (orphan == nullptr || name < *orphan)) orphan = &name;
    }
    if (orphan != nullptr) {
      const Found& found = found_[place_of_.at(*orphan)];
      corrupt((found.master ? found.master : found.states.front().value)->key,
              "does not belong to any parameter of the model");
    }
    for (const ModelEntry& entry : state_.model) {
      if (entry.what != ModelEntry::What::Param) continue;
      const Found& found = found_[entry.param];
      const bool has_master = found.master != nullptr, has_states = !found.states.empty();
      if (!has_master && !has_states && !by_hooks_.empty()) continue;  // may come from those
      if (!has_master && !has_states && is_buffer(state_, entry.name)) continue;
      if (!has_master && !has_states) {
        frozen_.insert(entry.name);
        continue;
      }
      if (!has_master && !is_own_master(found.weight->dtype)) {
        corrupt(state_key(kMasterState, entry.name), "is missing");
      }
      if (!has_states) corrupt(entry.name, "has no optimizer state");
    }
  }

  bool is_stepped(const std::string& name) const {
    return !is_buffer(state_, name) && !options_.frozen.contains(name) && !frozen_.contains(name);
  }

  void read_params() {
    std::vector<Found> in_order;  // of the parameters
    in_order.reserve(found_.size());
    state_.params.reserve(state_.model.size());
    for (ModelEntry& entry : state_.model) {
      if (entry.what != ModelEntry::What::Param) continue;
      Found& found = in_order.emplace_back(std::move(found_[entry.param]));
      TrainedParam param = make_param(found.weight);
      param.info.requires_grad = is_stepped(entry.name);
      if (found.master) {
        check_shape(*found.master, *found.weight);
        if (!is_master_dtype(found.master->dtype)) {
          unsupported(found.master->key, "the master is not float32");
        }
      }
      param.master = std::move(found.master);
      param.states = std::move(found.states);
      std::ranges::stable_sort(param.states, {},
                               [](const auto& one) { return state_place(one.name); });
      for (const StateTensor& state : param.states) {
        check_state_shape(state.name, *state.value, *found.weight);
        if (!is_state_dtype(state.value->dtype)) {
          unsupported(state.value->key,
                      "optimizer state of type " + std::string(name(state.value->dtype)));
        }
      }
      entry.param = static_cast<uint32_t>(state_.params.size());
      state_.params.push_back(std::move(param));
    }
    for (ModelEntry& entry : state_.model) {
      if (entry.what != ModelEntry::What::OtherName) continue;
      entry.param = index_of_param(rules_.table->same_as(entry.name));
    }
    found_ = std::move(in_order);
    place_of_.clear();
    ask_for_gating(state_);
    for (TrainedParam& param : state_.params) {
      const bool is_expert = expert_in(param.info.name).has_value();
      // Their chunks are shards of data-parallel ranks.
      const uint32_t ranks = keys_are_names_ ? 1 : tensor_ranks(state_.grid.sizes, is_expert);
      const std::vector<uint64_t>* const sections = sections_of(param.info.name);
      param.sharing = sections != nullptr ? TensorSharing{true, Split{0, *sections}}
                                          : sharing_of_chunks(state_, param, ranks);
      if (is_in_blocks(state_, param.info.name)) order_rows(ranks, param);
    }
    segmented_.reset();
  }

  uint32_t index_of_param(std::string_view name) const {
    const auto param = std::ranges::find_if(
        state_.params, [&](const TrainedParam& one) { return one.info.name == name; });
    return static_cast<uint32_t>(param - state_.params.begin());
  }

  const std::vector<uint64_t>* sections_of(const std::string& name) const {
    if (segmented_->joined().empty()) return nullptr;
    return segmented_->sections(keys_are_names_ ? name : sharded_name(name, rules_).key);
  }

  static void check_state_shape(std::string_view name, const TensorEntry& state,
                                const TensorEntry& weight) {
    const auto expected = shape_of_state(name, weight.shape);
    if (!expected || state.shape == *expected) return;
    if (*expected == weight.shape) check_shape(state, weight);
    corrupt(state.key, "does not have the shape that this state of its parameter has");
  }

  static void check_shape(const TensorEntry& state, const TensorEntry& weight) {
    if (state.shape != weight.shape) corrupt(state.key, "has a different shape from its parameter");
  }

  // --- the common state ---

  void carry_common() {
    std::ranges::move(common_losses(stated_), std::back_inserter(state_.not_carried));
    const Value root = document_.tree.root();
    for (const auto& [key, value] : ckpt::items_of(root)) {
      if (!key.is(Kind::Str)) stated_.corrupt("/" + ckpt::key_text(key), "a key is not a string");
      if (key.text() == "optimizer" || key.text() == "content_metadata") continue;
      common_.put(key.text(), common_.carry(value, document_));
      if (key.text() == "opt_param_scheduler") carry_rng();
    }
    carry_rng();
  }

  // In its place of a `torch` file: rank 0's.
  void carry_rng() {
    for (const RankRng& rng : state_.rng_states) {
      if (rng.tensor == 0 && rng.pipeline == 0) common_.put("rng_state", rng.value);
    }
  }

  void require_masters() const {
    for (const TrainedParam& param : state_.params) {
      if (!param.info.requires_grad || param.master) continue;
      const bool is_distributed = state_.filed.optimizers[param.optimizer]->by_elements;
      if (!is_distributed && is_own_master(param.weight->dtype)) continue;
      corrupt(state_key(is_distributed ? kDistributedMaster : kMasterState, param.info.name),
              "is missing");
    }
  }

  const OpenedTraining& source_;
  const ckpt::Catalog& catalog_;
  bool keys_are_names_;
  const Filing& filing_;
  bool model_only_;
  const ReadOptions& options_;
  CommonState stated_;
  const Document& document_;
  std::vector<std::unique_ptr<StoredOptimizers>> found_by_hooks_;
  std::map<uint32_t, const Filing*> by_hooks_;  // optimizers of the chain
  FiledState state_;
  CommonBuilder common_;
  KeyRules rules_;
  std::optional<SegmentedTensors> segmented_;
  std::set<std::string> frozen_;  // have neither master nor state
  std::vector<Found> found_;      // as names are met; of the parameters, when these are read
  std::unordered_map<std::string, uint32_t> place_of_;  // of a parameter's name, in found_
};

}  // namespace

FiledState read_store(const StoredState& stored, const Filing& filing, const ReadOptions& options) {
  return LayerWiseReader(stored, options, filing).run();
}

}  // namespace optim
