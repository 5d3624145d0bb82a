// Reads the training state of a torch_dist folder: keys name the parameters, stacked over layers;
// the common state lies in common.pt or in the store.
#include <algorithm>
#include <map>

#include "layouts/common_losses.h"
#include "layouts/common_optimizers.h"
#include "layouts/common_state.h"
#include "layouts/layer_wise_view.h"
#include "layouts/stacked_layers.h"
#include "layouts/tensor_attributes.h"
#include "state/args_of_state.h"

namespace optim {
namespace {

using ckpt::Document;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Kind;
using ckpt::TensorEntry;
using ckpt::Value;

constexpr std::string_view kRngKey = "rng_state/shard_0.0_1.1";

// Order of the states of one parameter, as the optimizers create them.
constexpr std::string_view kStateOrder[] = {"momentum_buffer", "exp_avg", "exp_avg_sq",
                                            "moment2_buffer",  "L",       "R",
                                            "Q_L",             "Q_R"};

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

  TrainingState run() {
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
    read_common_optimizers({source_, state_}, groups, common_, view_);
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

  // What the file holds of one parameter.
  struct Found {
    TensorRef weight, master;
    std::vector<StateTensor> states;
  };

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
    Found& found = found_[name];
    if (state.empty()) {
      view_.model.push_back({ModelEntry::What::Param, name, 0, std::nullopt});
      found.weight = with_key(std::move(tensor), name);
    } else if (state != kMasterState) {
      found.states.push_back({state, with_key(std::move(tensor), state_key(state, name))});
    } else if (found.master) {
      corrupt(tensor.key, "its parameter has another master, too");
    } else {
      found.master = with_key(std::move(tensor), state_key(state, name));
    }
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
    for (const auto& [name, found] : found_) {
      if (found.weight) continue;
      const TensorRef& orphan = found.master ? found.master : found.states.front().value;
      corrupt(orphan->key, "does not belong to any parameter of the model");
    }
    for (const ModelEntry& entry : view_.model) {
      if (entry.what != ModelEntry::What::Param) continue;
      const Found& found = found_.at(entry.name);
      const bool has_master = found.master != nullptr, has_states = !found.states.empty();
      if (!has_master && !has_states) {
        unsupported(entry.name,
                    "has neither master nor optimizer state, as a frozen parameter, which is not "
                    "supported");
      }
      if (!has_master) corrupt(state_key(kMasterState, entry.name), "is missing");
      if (!has_states) corrupt(entry.name, "has no optimizer state");
    }
  }

  void read_params() {
    for (ModelEntry& entry : view_.model) {
      if (entry.what != ModelEntry::What::Param) continue;
      Found& found = found_.at(entry.name);
      TrainedParam param = make_param(*found.weight, entry.name);
      check_shape(*found.master, *found.weight);
      if (found.master->dtype != ckpt::DType::Float32) {
        unsupported(found.master->key, "the master is not float32");
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
      entry.param = static_cast<uint32_t>(view_.params.size());
      view_.params.push_back(std::move(param));
    }
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

  // All parameters of one optimizer have the same kinds of state.
  void check_states() const {
    std::map<uint32_t, const TrainedParam*> first;
    for (const TrainedParam& param : view_.params) {
      const auto [known, added] = first.emplace(param.optimizer, &param);
      if (!added && !std::ranges::equal(known->second->states, param.states, {},
                                        &StateTensor::name, &StateTensor::name)) {
        corrupt(param.info.name, "has different optimizer states from '" +
                                     ckpt::escaped(known->second->info.name) + "'");
      }
    }
  }

  const ckpt::Checkpoint& source_;
  CommonState state_;
  const Document& document_;
  TrainingState view_;
  CommonBuilder common_;
  std::map<std::string, Found> found_;  // by the parameter's name
  std::optional<Document> rng_;
};

}  // namespace

TrainingState name_layer_wise_dist(const ckpt::Checkpoint& checkpoint) {
  return Reader(checkpoint).run();
}

}  // namespace optim
