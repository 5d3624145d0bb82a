// The canonical view of a torch_dist folder: keys name the parameters, stacked over layers; the
// common state lies in common.pt.
#include <algorithm>
#include <map>
#include <set>

#include "layout/common_losses.h"
#include "layout/common_state.h"
#include "layout/layer_wise_view.h"
#include "layout/stacked_layers.h"
#include "layout/tensor_attributes.h"

namespace optim {
namespace {

using ckpt::Document;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Kind;
using ckpt::TensorEntry;
using ckpt::Value;

constexpr std::string_view kRngKey = "rng_state/shard_0.0_1.1";
constexpr std::string_view kCommonStep = "common_step";
constexpr std::string_view kShardingType = "param_state_sharding_type";

// Order of the states of one parameter, as the optimizers create them.
constexpr std::string_view kStateOrder[] = {"momentum_buffer", "exp_avg", "exp_avg_sq"};

size_t state_place(const std::string& state) {
  return static_cast<size_t>(std::find(std::begin(kStateOrder), std::end(kStateOrder), state) -
                             std::begin(kStateOrder));
}

[[noreturn]] void corrupt(const std::string& key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {".metadata", std::nullopt, key}, std::move(problem));
}
[[noreturn]] void unsupported(const std::string& key, std::string problem) {
  throw Error(ErrorCode::Unsupported, {".metadata", std::nullopt, key}, std::move(problem));
}

class Reader {
 public:
  explicit Reader(const ckpt::Checkpoint& source)
      : source_(source), state_(common_state(source)), document_(*state_.document) {}

  LayerWiseCheckpoint run() {
    const Value args = attributes_of_args(document_.tree.root(), state_.file);
    read_args(args, state_.file, view_);
    read_stacking();
    read_tensors();
    read_objects();
    check_pairs();
    order_model();
    read_params();
    const std::vector<ParamGroup> groups = group_params(args, view_.params);
    carry_common();
    read_optimizers(groups);
    check_states();
    finish_view(view_, common_, source_);
    return std::move(view_);
  }

 private:
  static CommonState common_state(const ckpt::Checkpoint& source) {
    if (auto state = read_common_state(source)) return std::move(*state);
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "neither common.pt nor a common state in the store");
  }

  // --- tensors ---

  // As the file has it, whatever args say.
  void read_stacking() {
    std::string stacked, unstacked;
    for (const TensorEntry& tensor : source_.catalog().tensors) {
      if (!tensor.file.empty() || tensor.key.starts_with(kStatePrefix)) continue;
      if (is_stacked_key(tensor.key)) stacked = tensor.key;
      if (is_layer_key(tensor.key)) unstacked = tensor.key;
    }
    if (!stacked.empty() && !unstacked.empty()) {
      unsupported(unstacked, "is the key of one layer, but '" + ckpt::escaped(stacked) +
                                 "' is stacked over layers; a model with both is not supported");
    }
    if (!stacked.empty() || !unstacked.empty()) view_.layers_stacked = !stacked.empty();
  }

  void read_tensors() {
    for (const TensorEntry& tensor : source_.catalog().tensors) {
      if (!tensor.file.empty()) continue;  // of common.pt
      if (tensor.key.starts_with("chained_") || tensor.key.starts_with("optimizer.distributed")) {
        unsupported(
            tensor.key,
            "is optimizer state in flat buffers of data-parallel ranks (dp_reshardable), which "
            "name no parameters; expected fully_reshardable state");
      }
      if (tensor.key.starts_with(kStatePrefix)) {
        read_state_tensor(tensor);
      } else {
        add_by_layer(tensor, "", tensor.key);
      }
    }
  }

  void read_state_tensor(const TensorEntry& tensor) {
    const std::string_view rest = std::string_view(tensor.key).substr(kStatePrefix.size());
    const size_t dot = rest.find('.');
    if (dot == rest.npos) corrupt(tensor.key, "does not name a parameter");
    const std::string_view state = rest.substr(0, dot);
    add_by_layer(tensor, std::string(state == kDistributedMaster ? kMasterState : state),
                 std::string(rest.substr(dot + 1)));
  }

  void add_by_layer(const TensorEntry& tensor, const std::string& state, const std::string& key) {
    if (!is_stacked_key(key)) return add(tensor, state, {key, std::nullopt});
    if (tensor.shape.empty() || tensor.shape[0] != view_.layer_count) {
      corrupt(tensor.key, "is not stacked over the " + std::to_string(view_.layer_count) +
                              " layers of args.num_layers");
    }
    for (uint32_t layer = 0; layer < view_.layer_count; ++layer) {
      add(layer_of(tensor, layer, {}), state, {key, layer});
    }
  }

  void add(TensorEntry tensor, const std::string& state, const ShardedName& sharded) {
    const std::string name = state_dict_name(sharded, key_rules(view_));
    if (state.empty()) {
      view_.model.push_back({ModelEntry::What::Param, name, 0, std::nullopt});
      tensor.key = name;
    } else {
      if (state != kMasterState) states_[name].push_back(state);
      tensor.key = state_key(state, name);
    }
    view_.tensors.tensors.push_back(std::move(tensor));
  }

  // --- objects ---

  void read_objects() {
    check_object_shards(source_.catalog().objects);
    for (const ckpt::ObjectEntry& object : source_.catalog().objects) {
      if (!object.file.empty() || object.key == kCommonStateKey) continue;
      if (object.key == kRngKey) {
        rng_ = source_.read_object(object);
        continue;
      }
      const auto shard = parse_object_key(object.key);
      if (!shard) unsupported(object.key, "this object is unknown");
      if (is_extra_state(shard->key)) {
        read_extra_state(object, *shard);
      } else if (shard->key.starts_with("rerun_state_machine")) {
        view_.rank_objects.emplace_back(
            object.key, std::make_shared<const Document>(source_.read_object(object)));
      } else {
        unsupported(object.key, "this object is unknown");
      }
    }
  }

  void read_extra_state(const ckpt::ObjectEntry& object, const ObjectShard& shard) {
    const bool stacked = is_stacked_key(shard.key);
    if (stacked && (shard.count != view_.layer_count || shard.index >= shard.count)) {
      corrupt(object.key, "is not one of " + std::to_string(view_.layer_count) + " layers");
    }
    const std::optional<uint32_t> layer = stacked ? std::optional(shard.index) : std::nullopt;
    const std::string name = state_dict_name({shard.key, layer}, key_rules(view_));
    auto document = std::make_shared<Document>(source_.read_object(object));
    const Value root = document->tree.root();
    if (!root.is(Kind::List) || root.size() != 1)
      corrupt(object.key, "is not a list of one object");
    ModelEntry entry{ModelEntry::What::ExtraState, name, 0, std::nullopt};
    if (!root[0].is_none()) {
      document->tree.set_root(root[0].id());
      entry.object = static_cast<uint32_t>(view_.extra_states.size());
      view_.extra_states.push_back(std::move(document));
    }
    view_.model.push_back(std::move(entry));
  }

  // --- the model in its order ---

  void order_model() {
    // Dropped from sharded state dicts, where it is None; the model's own has it, with tied
    // embeddings, too.
    view_.model.push_back(
        {ModelEntry::What::ExtraState, std::string(kOutputExtraState), 0, std::nullopt});
    for (const ModelEntry& entry : view_.model) {
      if (!model_position(entry.name)) {
        unsupported(entry.name, "its position in the model's order is unknown");
      }
    }
    std::sort(view_.model.begin(), view_.model.end(), [](const auto& a, const auto& b) {
      return *model_position(a.name) < *model_position(b.name);
    });
  }

  // Every parameter of the model has a master and state, and they belong to no other. A loss cannot
  // look like a frozen parameter: .metadata would leave bytes of a file unclaimed.
  void check_pairs() const {
    std::set<std::string_view> keys;
    for (const TensorEntry& tensor : view_.tensors.tensors) keys.insert(tensor.key);
    const std::string master_prefix = state_key(kMasterState, "");
    for (const std::string_view key : keys) {
      if (key.starts_with(master_prefix) && !keys.contains(key.substr(master_prefix.size()))) {
        corrupt(std::string(key), "does not belong to any parameter of the model");
      }
    }
    for (const auto& [name, states] : states_) {
      if (!keys.contains(name)) {
        corrupt(state_key(states[0], name), "does not belong to any parameter of the model");
      }
    }
    for (const ModelEntry& entry : view_.model) {
      if (entry.what != ModelEntry::What::Param) continue;
      const std::string master = state_key(kMasterState, entry.name);
      const bool has_master = keys.contains(master), has_states = states_.contains(entry.name);
      if (!has_master && !has_states) {
        unsupported(entry.name,
                    "has neither master nor optimizer state, as a frozen parameter, which is not "
                    "supported");
      }
      if (!has_master) corrupt(master, "is missing");
      if (!has_states) corrupt(entry.name, "has no optimizer state");
    }
  }

  void read_params() {
    std::map<std::string_view, const TensorEntry*> tensors;
    for (const TensorEntry& tensor : view_.tensors.tensors) tensors.emplace(tensor.key, &tensor);
    for (ModelEntry& entry : view_.model) {
      if (entry.what != ModelEntry::What::Param) continue;
      const TensorEntry& weight = *tensors.at(entry.name);
      LayerWiseParam param = make_param(weight, entry.name);
      const TensorEntry& master = check_state(tensors, state_key(kMasterState, entry.name), weight);
      if (master.dtype != ckpt::DType::Float32) {
        unsupported(master.key, "the master is not float32");
      }
      param.states = states_.at(entry.name);
      std::stable_sort(param.states.begin(), param.states.end(), [](const auto& a, const auto& b) {
        return state_place(a) < state_place(b);
      });
      for (const std::string& state : param.states) {
        const TensorEntry& moment = check_state(tensors, state_key(state, entry.name), weight);
        if (!is_state_dtype(moment.dtype)) {
          unsupported(moment.key, "optimizer state of type " + std::string(name(moment.dtype)));
        }
      }
      entry.param = static_cast<uint32_t>(view_.params.size());
      view_.params.push_back(std::move(param));
    }
  }

  template <class Tensors>
  static const TensorEntry& check_state(const Tensors& tensors, const std::string& key,
                                        const TensorEntry& weight) {
    const TensorEntry& state = *tensors.at(key);
    if (state.shape != weight.shape) corrupt(key, "has a different shape from its parameter");
    return state;
  }

  // --- the common state ---

  void carry_common() {
    std::ranges::move(common_losses(state_), std::back_inserter(view_.not_carried));
    const Value root = document_.tree.root();
    for (size_t i = 0; i < root.item_count(); ++i) {
      const auto [key, value] = root.item(i);
      if (!key.is(Kind::Str)) throw_common("/" + ckpt::key_text(key), "a key is not a string");
      if (key.text() == "optimizer" || key.text() == "content_metadata") continue;
      common_.put(key.text(), common_.carry(value, document_));
      if (key.text() == "opt_param_scheduler") carry_rng();
    }
    carry_rng();
  }

  // Stored as a list of one object, which is the list over data-parallel ranks.
  void carry_rng() {
    if (!rng_) return;
    const Value root = rng_->tree.root();
    if (!root.is(Kind::List) || root.size() != 1) {
      corrupt(std::string(kRngKey), "is not a list of one object");
    }
    common_.put("rng_state", common_.carry(root[0], *rng_));
    rng_.reset();
  }

  [[noreturn]] void throw_common(const std::string& pointer, std::string problem) const {
    throw Error(ErrorCode::Corrupt, {state_.file, std::nullopt, state_.key + pointer},
                std::move(problem));
  }

  // {0: {...}, 1: {...}} for a chain, the state itself for one optimizer.
  void read_optimizers(const std::vector<ParamGroup>& groups) {
    const auto optimizer = document_.tree.root().find("optimizer");
    if (!optimizer || !optimizer->is(Kind::Dict)) throw_common("/optimizer", "is missing");
    const size_t count = groups.empty() ? 0 : groups.back().optimizer_index + 1;
    view_.optimizers.resize(count);
    const bool chained = optimizer->find(int64_t{0}).has_value();
    if ((chained ? optimizer->item_count() : 1) != count) {
      throw_common("/optimizer", "expected a chain of " + std::to_string(count) + " optimizers");
    }
    for (size_t i = 0; i < count; ++i) {
      const auto state = chained ? optimizer->find(static_cast<int64_t>(i)) : optimizer;
      const std::string pointer = "/optimizer" + (chained ? "/" + std::to_string(i) : "");
      if (!state || !state->is(Kind::Dict)) throw_common(pointer, "is missing");
      read_optimizer(*state, pointer, view_.optimizers[i]);
      const auto expected = static_cast<size_t>(
          std::count_if(groups.begin(), groups.end(),
                        [&](const ParamGroup& group) { return group.optimizer_index == i; }));
      if (view_.optimizers[i].groups.size() != expected) {
        throw_common(pointer + "/optimizer/param_groups",
                     "holds " + std::to_string(view_.optimizers[i].groups.size()) +
                         " groups, but the model's parameters need " + std::to_string(expected));
      }
    }
  }

  void read_optimizer(const Value& state, const std::string& pointer, LayerWiseOptimizer& out) {
    for (size_t i = 0; i < state.item_count(); ++i) {
      const auto [key, value] = state.item(i);
      require_string(key, pointer);
      if (key.text() == "optimizer" || key.text() == kShardingType) continue;
      out.others.emplace_back(key.text(), common_.carry(value, document_));
    }
    const auto inner = state.find("optimizer");
    if (!inner || !inner->is(Kind::Dict)) throw_common(pointer + "/optimizer", "is missing");
    for (size_t i = 0; i < inner->item_count(); ++i) {
      const auto [key, value] = inner->item(i);
      require_string(key, pointer + "/optimizer");
      if (key.text() == "state" || key.text() == "param_groups") continue;
      out.inner_others.emplace_back(key.text(), common_.carry(value, document_));
    }
    const auto groups = inner->find("param_groups");
    if (!groups || !groups->is(Kind::List)) {
      throw_common(pointer + "/optimizer/param_groups", "is missing");
    }
    for (size_t i = 0; i < groups->size(); ++i) {
      if (!(*groups)[i].is(Kind::Dict))
        throw_common(pointer + "/optimizer/param_groups", "is not a dict");
      out.groups.push_back(common_.carry((*groups)[i], document_));
      if ((*groups)[i].find("step")) out.step_layout = StepLayout::PerGroup;
    }
    read_common_step(*inner, pointer + "/optimizer/state/" + std::string(kCommonStep), out);
  }

  void require_string(const Value& key, const std::string& pointer) const {
    if (key.is(Kind::Str)) return;
    throw Error(ErrorCode::Unsupported,
                {state_.file, std::nullopt, state_.key + pointer + "/" + ckpt::key_text(key)},
                "the key is not a string");
  }

  void read_common_step(const Value& inner, const std::string& pointer, LayerWiseOptimizer& out) {
    const auto state = inner.find("state");
    if (!state) return;
    const bool is_known =
        state->is(Kind::Dict) && state->item_count() == (state->find(kCommonStep) ? size_t{1} : 0);
    if (!is_known) {
      throw Error(ErrorCode::Unsupported, {state_.file, std::nullopt, state_.key + pointer},
                  "the common state holds unknown state in addition to it");
    }
    if (state->item_count() == 0) return;
    const TensorEntry* tensor = source_.catalog().find_tensor(pointer, state_.file);
    if (tensor == nullptr || !tensor->shape.empty())
      throw_common(pointer, "is not a single number");
    note_what_a_step_loses({pointer, *state->find(kCommonStep), document_}, view_);
    out.step_layout = StepLayout::PerParam;
    out.step_dtype = tensor->dtype;
    out.step_bytes.resize(ckpt::count_bytes(*tensor));
    source_.read(*tensor, ckpt::whole({}), std::as_writable_bytes(std::span(out.step_bytes)));
  }

  // All parameters of one optimizer have the same kinds of state.
  void check_states() const {
    std::map<uint32_t, const LayerWiseParam*> first;
    for (const LayerWiseParam& param : view_.params) {
      const auto [known, added] = first.emplace(param.optimizer, &param);
      if (!added && known->second->states != param.states) {
        corrupt(param.info.name, "has different optimizer states from '" +
                                     ckpt::escaped(known->second->info.name) + "'");
      }
    }
  }

  const ckpt::Checkpoint& source_;
  CommonState state_;
  const Document& document_;
  LayerWiseCheckpoint view_;
  CommonBuilder common_;
  std::map<std::string, std::vector<std::string>> states_;  // by name; masters apart
  std::optional<Document> rng_;
};

}  // namespace

LayerWiseCheckpoint name_layer_wise_dist(const ckpt::Checkpoint& checkpoint) {
  return Reader(checkpoint).run();
}

}  // namespace optim
