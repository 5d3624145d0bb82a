// Reads the training state of a `torch` folder: mp_rank_00/model_optim_rng.pt and one
// layer_wise_optimizer_R.pt per data-parallel rank. Those files number their parameters; the names
// come from replaying Megatron's deal over the model's ordered state dict, and every count and
// shape must agree with what the files hold.
#include <algorithm>
#include <map>
#include <set>

#include "layouts/layer_wise_place.h"
#include "layouts/layer_wise_view.h"
#include "layouts/rank_files.h"
#include "layouts/rank_items.h"
#include "layouts/repeated_state.h"
#include "layouts/step_counter.h"
#include "layouts/tensor_attributes.h"
#include "state/args_of_state.h"
#include "state/group_compare.h"
#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::Document;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Kind;
using ckpt::TensorEntry;
using ckpt::Value;

// Before anything is said to be missing: other layouts have no folder mp_rank_00.
void refuse_other_rank_folders(const ckpt::Checkpoint& source) {
  for (const ckpt::FileEntry& file : source.catalog().files) {
    if (!file.path.starts_with(kRankFolder)) {
      throw Error(ErrorCode::Unsupported, {.file = file.path, .key = {}},
                  "belongs to another model-parallel rank; expected data parallelism only");
    }
  }
}

class Reader {
 public:
  Reader(const ckpt::Checkpoint& source, const std::set<std::string>& frozen)
      : source_(source),
        frozen_(frozen),
        model_(require_document(std::string(kModelFile))),
        rank_items_(source) {}

  TrainingState run() {
    const Value args = attributes_of_args(model_.tree.root(), std::string(kModelFile));
    read_args(args, std::string(kModelFile), view_);
    check_rank_files();
    read_model();
    groups_ = group_params(args, view_.params);
    view_.chain.resize(groups_.empty() ? 0 : groups_.back().optimizer_index + 1);
    carry_common();
    read_ranks();
    check_repeated_state(source_, std::string(kModelFile), rank_file(0));
    rank_items_.settle(view_.sizes.data_parallel, common_, view_);
    steps_.finish(common_, view_);
    finish_view(view_, common_, source_);
    return std::move(view_);
  }

 private:
  const Document& require_document(const std::string& file) const {
    if (const Document* document = source_.document(file)) return *document;
    throw Error(ErrorCode::NotFound, {.file = file, .key = {}},
                "this file of the checkpoint is missing");
  }

  void check_rank_files() const {
    const uint32_t ranks = view_.sizes.data_parallel;
    for (uint32_t rank = 0; rank < ranks; ++rank) require_document(rank_file(rank));
    for (const ckpt::FileEntry& file : source_.catalog().files) {
      const auto rank = rank_of(file.path);
      if (rank && *rank >= ranks) {
        throw Error(ErrorCode::Corrupt, {.file = file.path, .key = {}},
                    "unexpected rank file: args.data_parallel_size is " + std::to_string(ranks),
                    "it may be left over from a run with more data-parallel ranks");
      }
    }
  }

  const TensorEntry& tensor_at(const Place& place) const {
    const TensorEntry* tensor = source_.catalog().find_tensor(place.pointer, place.file);
    if (tensor == nullptr) place.corrupt("is not a tensor");
    return *tensor;
  }

  // --- the model ---

  void read_model() {
    const Place place = Place{std::string(kModelFile), ""} / "model";
    const auto model = model_.tree.root().find("model");
    if (!model) place.corrupt("the model's state dict is missing");
    if (model->is(Kind::Object) && model->state()) {
      view_.model_metadata = common_.carry(*model->state(), model_);
    }
    std::set<std::string_view> names;
    for (size_t i = 0; i < model->item_count(); ++i) {
      const auto [key, value] = model->item(i);
      if (!key.is(Kind::Str)) place.corrupt("a name is not a string");
      if (!names.insert(key.text()).second) {
        (place / key.text()).unsupported("the model's state dict has this name twice");
      }
      read_model_entry(std::string(key.text()), value, place / key.text());
    }
  }

  void read_model_entry(std::string name, const Value& value, const Place& place) {
    ModelEntry entry;
    entry.name = name;
    if (is_extra_state(name)) {
      entry.what = ModelEntry::What::ExtraState;
      if (!value.is_none()) entry.object = add_extra_state(value);
    } else {
      const TensorEntry& tensor = tensor_at(place);
      entry.param = static_cast<uint32_t>(view_.params.size());
      view_.params.push_back(make_param(tensor, name));
      view_.params.back().info.requires_grad = !frozen_.contains(name);
      note_attributes({name, value, model_}, common_, view_);
    }
    view_.model.push_back(std::move(entry));
  }

  // An extra state that holds something (fp8 scales) becomes a document of its own.
  uint32_t add_extra_state(const Value& value) {
    auto document = std::make_shared<Document>();
    document->tree.set_root(document->tree.copy(value));
    document->storages = model_.storages;
    view_.extra_states.push_back(std::move(document));
    return static_cast<uint32_t>(view_.extra_states.size() - 1);
  }

  void carry_common() {
    const Value root = model_.tree.root();
    for (size_t i = 0; i < root.item_count(); ++i) {
      const auto [key, value] = root.item(i);
      if (!key.is(Kind::Str) || key.text() == "model" || key.text() == "optimizer") continue;
      common_.put(key.text(), common_.carry(value, model_));
    }
  }

  // --- the optimizer ---

  void read_ranks() {
    const RankGroups deal =
        deal_params(groups_, view_.sizes.data_parallel, OwnershipPolicy::PingPong);
    for (uint32_t rank = 0; rank < deal.size(); ++rank) {
      const Document& document = require_document(rank_file(rank));
      read_rank(document, {rank_file(rank), ""}, {rank, deal[rank]});
    }
  }

  struct DealtRank {
    uint32_t rank;
    const std::vector<std::vector<uint32_t>>& groups;  // of all optimizers
  };

  void read_rank(const Document& document, const Place& place, const DealtRank& dealt) {
    const RankOptimizers rank = optimizers_of(document.tree.root(), place);
    if (rank.states.size() != view_.chain.size()) {
      place.corrupt("holds " + std::to_string(rank.states.size()) + " optimizers, expected " +
                    std::to_string(view_.chain.size()));
    }
    size_t group = 0;
    for (size_t i = 0; i < rank.states.size(); ++i) {
      std::vector<std::vector<uint32_t>> own;
      for (; group < groups_.size() && groups_[group].optimizer_index == i; ++group) {
        own.push_back(dealt.groups[group]);
      }
      read_optimizer(document, rank.states[i], rank.places[i], {dealt.rank, i, own});
    }
  }

  struct Dealt {
    uint32_t rank;
    size_t optimizer;
    std::vector<std::vector<uint32_t>> groups;  // parameters in local order
  };

  void read_optimizer(const Document& document, const Value& state, const Place& place,
                      const Dealt& dealt) {
    const Value inner = member(state, "optimizer", place);
    const Place inner_place = place / "optimizer";
    const Value groups = list_member(inner, "param_groups", inner_place);
    const Value masters = list_member(state, "fp32_from_fp16_params", place);
    const Value states = member(inner, "state", inner_place);
    if (groups.size() != dealt.groups.size() || masters.size() != dealt.groups.size()) {
      inner_place.corrupt("holds " + std::to_string(groups.size()) +
                          " parameter groups, expected " + std::to_string(dealt.groups.size()));
    }
    size_t local_index = 0;
    for (size_t g = 0; g < dealt.groups.size(); ++g) {
      check_group_counts(groups[g], masters[g], dealt.groups[g].size(),
                         inner_place / "param_groups" / g);
      for (size_t i = 0; i < dealt.groups[g].size(); ++i, ++local_index) {
        const uint32_t param = dealt.groups[g][i];
        check_index(groups[g].at("params")[i], local_index, inner_place / "param_groups" / g);
        read_master(document, masters[g][i], param, place / "fp32_from_fp16_params" / g / i);
        read_states(document, states, {local_index, param}, inner_place / "state" / local_index);
      }
      merge_group({dealt.optimizer, g}, document, groups[g], inner_place / "param_groups" / g);
    }
    if (states.item_count() != local_index) {
      (inner_place / "state")
          .corrupt("holds the state of " + std::to_string(states.item_count()) +
                   " parameters, but the groups have " + std::to_string(local_index));
    }
    const auto optimizer = static_cast<uint32_t>(dealt.optimizer);
    rank_items_.add({dealt.rank, optimizer, false, document, state, place},
                    {"optimizer", "fp32_from_fp16_params"});
    rank_items_.add({dealt.rank, optimizer, true, document, inner, inner_place},
                    {"state", "param_groups"});
  }

  void check_group_counts(const Value& group, const Value& masters, size_t expected,
                          const Place& place) const {
    const Value params = list_member(group, "params", place);
    if (!masters.is(Kind::List)) place.corrupt("its fp32_from_fp16_params are not a list");
    if (params.size() == expected && masters.size() == expected) return;
    place.corrupt("holds " + std::to_string(params.size()) + " parameters and " +
                      std::to_string(masters.size()) +
                      " masters, but the ping-pong deal assigns it " + std::to_string(expected),
                  kMixedFilesHint);
  }

  static void check_index(const Value& index, size_t expected, const Place& place) {
    if (index.is(Kind::Int) && index.as_int() == static_cast<int64_t>(expected)) return;
    (place / "params").corrupt("does not continue the numbering of the group before");
  }

  void read_master(const Document& document, const Value& value, uint32_t param,
                   const Place& place) {
    const TensorEntry& tensor = tensor_at(place);
    if (tensor.dtype != ckpt::DType::Float32) place.unsupported("the master is not float32");
    check_shape(tensor, param, place);
    TrainedParam& owner = view_.params[param];
    owner.master = with_key(tensor, state_key(kMasterState, owner.info.name));
    note_attributes({owner.master->key, value, document}, common_, view_);
  }

  void check_shape(const TensorEntry& tensor, uint32_t param, const Place& place) const {
    const auto& expected = view_.params[param].info.shape;
    if (std::equal(tensor.shape.begin(), tensor.shape.end(), expected.begin(), expected.end())) {
      return;
    }
    place.corrupt("has a different shape from '" + ckpt::escaped(view_.params[param].info.name) +
                      "', which the ping-pong deal assigns to this place",
                  kMixedFilesHint);
  }

  // --- the state of one parameter ---

  struct LocalParam {
    size_t local_index;  // on its rank
    uint32_t param;      // in the model
  };

  void read_states(const Document& document, const Value& states, const LocalParam& local,
                   const Place& place) {
    const auto state =
        states.is(Kind::Dict) ? states.find(static_cast<int64_t>(local.local_index)) : std::nullopt;
    if (!state || !state->is(Kind::Dict)) place.corrupt("the parameter has no state");
    for (size_t i = 0; i < state->item_count(); ++i) {
      const auto [key, value] = state->item(i);
      if (!key.is(Kind::Str)) place.corrupt("the name of a state is not a string");
      read_state(document, {std::string(key.text()), value}, local.param, place / key.text());
    }
  }

  struct NamedValue {
    std::string name;
    Value value;
  };

  void read_state(const Document& document, const NamedValue& state, uint32_t param,
                  const Place& place) {
    const auto& [name, value] = state;
    TrainedParam& owner = view_.params[param];
    if (!ckpt::as_tensor(value)) return read_number(state, param, place);
    const TensorEntry& tensor = tensor_at(place);
    if (name == "step") {
      note_what_a_step_loses({state_key(name, owner.info.name), value, document}, view_);
      return steps_.add(source_, tensor, place, {param, view_});
    }
    check_state_shape(name, tensor, param, place);
    if (!is_state_dtype(tensor.dtype)) place.unsupported("optimizer state of integers");
    owner.states.push_back({name, with_key(tensor, state_key(name, owner.info.name))});
    note_attributes({owner.states.back().value->key, value, document}, common_, view_);
  }

  // Its parameter's shape, or one that the optimizer gives it.
  void check_state_shape(std::string_view state, const TensorEntry& tensor, uint32_t param,
                         const Place& place) const {
    const auto& of_param = view_.params[param].weight->shape;
    const auto expected = shape_of_state(state, of_param);
    if (!expected || tensor.shape == *expected) return;
    if (*expected == of_param) check_shape(tensor, param, place);
    place.corrupt("does not have the shape that this state of '" +
                      ckpt::escaped(view_.params[param].info.name) + "' has",
                  kMixedFilesHint);
  }

  void read_number(const NamedValue& state, uint32_t param, const Place& place) {
    if (state.name != "step" || !state.value.is(Kind::Int)) {
      place.unsupported("is a state that is not a tensor; expected tensors and a step count");
    }
    steps_.add(state.value.as_int(), place, {param, view_});
  }

  // --- groups and the rest ---

  struct GroupPlace {
    size_t optimizer, group;
  };

  // All ranks state the same groups; only `params`, and `step` where a group is empty, differ.
  void merge_group(const GroupPlace& where, const Document& document, const Value& group,
                   const Place& place) {
    ChainedOptimizerState& owner = view_.chain[where.optimizer];
    compare_with_other_ranks(where, group, place);
    const ckpt::NodeId own = common_.carry(group, document);
    common_.tree().erase(own, "params");
    if (owner.groups.size() == where.group) return owner.groups.push_back(own);
    const ckpt::NodeId known = owner.groups[where.group];
    const auto step = common_.tree().value(own).find("step");
    const auto known_step = common_.tree().value(known).find("step");
    if (step && !known_step) {
      common_.tree().put(known, "step", step->id());
    } else if (step && known_step && first_difference(*step, *known_step)) {
      (place / "step").unsupported("its step count differs between ranks");
    }
  }

  // Against the first rank that holds parameters of the group: its copy is complete.
  void compare_with_other_ranks(const GroupPlace& where, const Value& group, const Place& place) {
    const StatedGroup own{group, rank_name(place.file)};
    const auto [known, is_first] = stated_.try_emplace({where.optimizer, where.group}, own);
    if (is_first) return;
    if (const auto difference = group_difference(known->second, own)) {
      (place / difference->key).corrupt(difference->problem, kMixedFilesHint);
    }
    if (is_empty_group(known->second.group)) known->second = own;
  }

  const ckpt::Checkpoint& source_;
  const std::set<std::string>& frozen_;
  const Document& model_;
  TrainingState view_;
  CommonBuilder common_;
  RankItems rank_items_;
  std::vector<ParamGroup> groups_;
  StepCounter steps_;
  std::map<std::pair<size_t, size_t>, StatedGroup> stated_;  // by optimizer and group
};

}  // namespace

TrainingState name_layer_wise_torch(const ckpt::Checkpoint& checkpoint,
                                          const std::set<std::string>& frozen) {
  refuse_other_rank_folders(checkpoint);
  return Reader(checkpoint, frozen).run();
}

}  // namespace optim
