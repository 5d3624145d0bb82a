// Reads Megatron's state dicts under FSDP, as torch.distributed.checkpoint flattens them:
//   model.NAME, model.module.NAME        FSDP2; Megatron-FSDP, whose wrappers are called module
//   optimizer.fp32_from_fp16_params.G.I  FSDP2: masters of group G
//   optimizer.optimizer.state.N.STATE    N: one of optimizer.optimizer.param_groups.G.params
//   optimizer.state.NAME.STATE           Megatron-FSDP, whose model has float32 masters for weights
//   optimizer.param_to_group_meta.NAME.SETTING
// and rows of gate and up apart, as NAME_w and NAME_v (Megatron's fsdp_dtensor_checkpoint.py).
#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/cast.h>
#include <ckpt/text.h>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "grid/target_groups.h"
#include "layouts/parts/store_errors.h"
#include "layouts/torch_dist/readers.h"
#include "layouts/torch_dist/store_chunks.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::ObjectEntry;
using store_errors::corrupt;
using store_errors::unsupported;

constexpr std::string_view kModel = "model.", kRng = "rng_state.";
constexpr std::string_view kNamedState = "optimizer.state.";
constexpr std::string_view kMeta = "optimizer.param_to_group_meta.";
constexpr std::string_view kNumberedState = "optimizer.optimizer.state.";
constexpr std::string_view kGroups = "optimizer.optimizer.param_groups.";
constexpr std::string_view kMasters = "optimizer.fp32_from_fp16_params.";
constexpr std::string_view kGate = "_w", kUp = "_v";

// Wrappers of a model call it module.
std::string own_name(std::string_view name) {
  constexpr std::string_view kWrapper = "module.";
  while (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
  return mtp_name_in_model(name);
}

// "3.exp_avg" -> 3 and "exp_avg"; "NAME.exp_avg" -> NAME and "exp_avg".
std::pair<std::string_view, std::string_view> split_last(std::string_view text) {
  const size_t dot = text.rfind('.');
  return dot == text.npos ? std::pair{text, std::string_view()}
                          : std::pair{text.substr(0, dot), text.substr(dot + 1)};
}

uint32_t number(std::string_view text, const std::string& key) {
  const auto value = ckpt::number_in<uint32_t>(text);
  if (!value) corrupt(key, "has no number in it");
  return *value;
}

// One of the source, under Megatron's key.
template <class Entry>
void add(Entry entry, std::string key, std::vector<Entry>& entries) {
  entry.key = std::move(key);
  entries.push_back(std::move(entry));
}

using GroupObjects = std::vector<std::pair<std::string, const ObjectEntry*>>;  // by setting
using NamedTensors = std::vector<std::pair<std::string, TensorEntry>>;

// The rows of both, gate before up.
TensorEntry with_rows(TensorEntry gate, const TensorEntry& up) {
  const bool fit = gate.dtype == up.dtype && !gate.shape.empty() && gate.shape == up.shape;
  if (!fit) corrupt(up.key, "does not have the type and the shape of its other half");
  const uint64_t rows = gate.shape[0];
  gate.shape[0] += rows;
  for (Chunk chunk : up.chunks) {
    chunk.box.offsets[0] += rows;
    gate.chunks.push_back(std::move(chunk));
  }
  return gate;
}

// Halves that are there both become one tensor.
NamedTensors joined(NamedTensors tensors) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i) places.emplace(tensors[i].first, i);
  const auto partner = [&](const std::string& name, std::string_view own, std::string_view other) {
    if (!name.ends_with(own)) return places.end();
    return places.find(name.substr(0, name.size() - own.size()) + std::string(other));
  };
  NamedTensors whole;
  for (auto& [name, tensor] : tensors) {
    if (partner(name, kUp, kGate) != places.end()) continue;
    const auto up = partner(name, kGate, kUp);
    if (up == places.end()) {
      whole.emplace_back(name, tensor);
    } else {
      whole.emplace_back(name.substr(0, name.size() - kGate.size()),
                         with_rows(tensor, tensors[up->second].second));
    }
  }
  return whole;
}

class StateDictReader {
 public:
  StateDictReader(const OpenedTraining& source, const ReadOptions& options)
      : source_(source), options_(options), common_(source.require_common_state()) {
    state_args_of_target();
  }

  FiledState run() {
    sort_out();
    FiledState state = read_model();
    const bool has_optimizer = !metas_.empty() || !groups_.empty();
    if (!options_.model_only && has_optimizer) state = read_all(std::move(state));
    order_blocks(state);
    note_left_out(has_optimizer);
    if (const auto rng = state.common.tree.root().find("rng_state")) {
      state.rng_states.push_back({0, 0, 0, rng->id()});
    } else if (has_rng_) {
      state.not_carried.push_back({"rng_state",
                                   "random states of several ranks of the model are "
                                   "not converted; the result has none"});
    }
    std::ranges::move(lost_, std::back_inserter(state.not_carried));
    state.filed.is_fully_sharded = true;
    return state;
  }

 private:
  void sort_out() {
    for (const TensorEntry& tensor : source_.catalog().tensors) {
      const std::string& key = tensor.key;
      if (key.starts_with(kRng)) {
        has_rng_ = true;
      } else if (key.starts_with(kModel) && is_extra_state(key)) {  // of FSDP2, as tensors
        if (ckpt::element_count(tensor.shape) != 0) lost_.push_back({key, "fp8 scales start anew"});
      } else if (key.starts_with(kModel)) {
        weights_.emplace_back(own_name(key.substr(kModel.size())), tensor);
      } else if (key.starts_with("optimizer.") && key.ends_with(".step")) {
        steps_.push_back(&tensor);
      } else if (key.starts_with(kNamedState)) {
        const auto [name, state] = split_last(std::string_view(key).substr(kNamedState.size()));
        states_[std::string(state)].emplace_back(own_name(name), tensor);
      } else if (key.starts_with(kNumberedState)) {
        const auto [id, state] = split_last(std::string_view(key).substr(kNumberedState.size()));
        numbered_[std::string(state)].emplace_back(number(id, key), tensor);
      } else if (key.starts_with(kMasters)) {
        const auto [group, place] = split_last(std::string_view(key).substr(kMasters.size()));
        masters_[{number(group, key), number(place, key)}] = tensor;
      } else {
        unsupported(key, "this tensor is unknown");
      }
    }
    for (const auto& [name, tensor] : weights_) stored_names_.insert(name);
    weights_ = joined(std::move(weights_));
    for (const ObjectEntry& object : source_.catalog().objects) sort_out(object);
    for (auto& [name, settings] : metas_) std::ranges::sort(settings);  // each rank stored some
  }

  void sort_out(const ObjectEntry& object) {
    const std::string& key = object.key;
    if (key.starts_with(kModel)) {
      extra_states_.push_back(&object);
    } else if (key.starts_with(kMeta)) {
      const auto [name, setting] = split_last(std::string_view(key).substr(kMeta.size()));
      metas_[own_name(name)].emplace_back(setting, &object);
    } else if (key.starts_with(kGroups)) {
      const auto [group, setting] = split_last(std::string_view(key).substr(kGroups.size()));
      groups_[number(group, key)].emplace_back(setting, &object);
    } else if (key.starts_with("optimizer.")) {
      unsupported(key, "this object is unknown");
    }
  }

  // Those of a run that reads what is made of it: without FSDP, its state shared as ZeRO-1's is.
  void state_args_of_target() {
    ckpt::ArchiveBuilder builder;
    ValueTree& tree = builder.tree();
    const NodeId root = builder.carry(common_.document->tree.root(), *common_.document);
    const auto args = args_of(tree.value(root));
    if (!args) common_.corrupt("/args", "is not a Namespace");
    const RunArgs& stated = source_.args();
    if (stated.size("pipeline_model_parallel_size") > 1) {
      throw Error(ErrorCode::Unsupported,
                  {common_.file, std::nullopt, "/args/@pipeline_model_parallel_size"},
                  "is above 1: Megatron refuses FSDP2 with pipeline stages, and cannot build "
                  "Megatron-FSDP with them",
                  "save from a run of one stage");
    }
    type_ = stated.is_true("bf16")   ? DType::BFloat16
            : stated.is_true("fp16") ? DType::Float16
                                     : DType::Float32;
    const auto put = [&](std::string_view name, NodeId value) {
      if (tree.value(args->id()).find(name)) tree.put(args->id(), name, value);
    };
    for (const char* const name : {"use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2"}) {
      put(name, tree.boolean(false));
    }
    put("use_distributed_optimizer", tree.boolean(true));
    put("ckpt_format", tree.str("torch_dist"));
    const auto rng = random_states_of_dicts(source_);
    if (rng) tree.put(root, "rng_state", builder.carry(rng->tree.root(), *rng));
    common_.document = std::make_shared<Document>(builder.finish_document(root));
  }

  // Megatron-FSDP has float32 masters as weights.
  bool is_rounded(const std::string& name, const TensorEntry& tensor) const {
    return groups_.empty() && !source_.args().is_true("use_torch_fsdp2") &&
           tensor.dtype == DType::Float32 && type_ != DType::Float32 && !is_model_buffer(name);
  }

  void add_model(ckpt::Catalog& out) const {
    for (const auto& [name, tensor] : weights_) {
      add(is_rounded(name, tensor) ? ckpt::with_cast(tensor, type_, {}) : tensor, name,
          out.tensors);
    }
    for (const ObjectEntry* const object : extra_states_) {
      add(*object, own_name(object->key.substr(kModel.size())) + "/shard_0_1", out.objects);
    }
  }

  void note_left_out(bool has_optimizer) {
    const auto rounded = [this](const auto& one) { return is_rounded(one.first, one.second); };
    if (has_optimizer && options_.model_only) {
      lost_.push_back({"the optimizer state", "--model-only leaves it out"});
    } else if (!has_optimizer && std::ranges::any_of(weights_, rounded)) {
      lost_.push_back({"float32 masters", "stored as the weights, which are rounded"});
    }
  }

  // Of rows in blocks, too, halves are those of each tensor-parallel rank.
  void order_blocks(FiledState& state) const {
    for (TrainedParam& param : state.params) {
      const std::string& name = param.info.name;
      if (!is_in_blocks(state, name) || !stored_names_.contains(name + std::string(kGate)))
        continue;
      order_rows(tensor_ranks(state.grid.sizes, expert_in(name).has_value()), param);
    }
  }

  FiledState read_model() const {
    ckpt::Catalog out;
    add_model(out);
    ReadOptions options = options_;
    options.model_only = true;
    return read(out, common_, options);
  }

  FiledState read(ckpt::Catalog& catalog, const CommonState& common,
                  const ReadOptions& options) const {
    catalog.format = ckpt::Format::TorchDist;
    catalog.index();
    return read_store({source_, catalog, common, true}, kByName, options);
  }

  FiledState read_all(FiledState model) {
    for (const auto& [state, of_names] : states_) read_step(of_names.size());
    for (const auto& [state, of_numbers] : numbered_) read_step(of_numbers.size());
    ckpt::Catalog out;
    add_model(out);
    const std::vector<ParamGroup> groups =
        group_params(model.args(), model.grid.sizes, model.params);
    const CommonState common =
        metas_.empty() ? by_number(groups, model, out) : by_name(groups, model, out);
    return read(out, common, options_);
  }

  void read_step(size_t params) {
    if (!steps_.empty() && !step_) step_ = common_step(steps_, params, source_);
  }

  CommonState by_name(const std::vector<ParamGroup>& groups, const FiledState& model,
                      ckpt::Catalog& out) {
    for (const auto& [name, tensor] : weights_) {
      const bool is_other_name = metas_.contains(std::string(rules_of(model).same_as(name)));
      if (is_model_buffer(name) || is_other_name) continue;
      if (tensor.dtype != DType::Float32) {
        unsupported(tensor.key, "is not a float32 master, which is not supported of Megatron-FSDP",
                    "--model-only carries all weights, without the optimizer's state");
      }
      add(tensor, state_key(kMasterState, name), out.tensors);
    }
    for (auto& [state, tensors] : states_) {
      for (auto& [name, tensor] : joined(std::move(tensors))) {
        add(std::move(tensor), state_key(state, name), out.tensors);
      }
    }
    std::vector<NodeId> dicts;
    for (const ParamGroup& group : groups) dicts.push_back(read_group(group, model));
    return with_groups(groups, dicts);
  }

  // All parameters of a group state one and the same.
  NodeId read_group(const ParamGroup& group, const FiledState& model) {
    std::optional<NodeId> first;
    for (const GroupedParam& member : group.params) {
      const std::string& name = model.params.at(member.index).info.name;
      const auto meta = metas_.find(name);
      if (meta == metas_.end()) corrupt(std::string(kMeta) + name, "is missing");
      if (!first) {
        first = read_dict(meta->second, builder_, kept_);
        continue;
      }
      ckpt::ArchiveBuilder other;
      std::list<Document> kept;
      const NodeId own = read_dict(meta->second, other, kept);
      const auto place = first_difference(builder_.tree().value(*first), other.tree().value(own));
      if (place) {
        unsupported(std::string(kMeta) + name + *place,
                    "differs from what another parameter of its group states");
      }
    }
    return *first;
  }

  NodeId read_dict(const GroupObjects& objects, ckpt::ArchiveBuilder& builder,
                   std::list<Document>& kept) const {
    const NodeId dict = builder.tree().dict();
    for (const auto& [setting, object] : objects) {
      const Document& one = kept.emplace_back(source_.read_object(*object));
      builder.tree().put(dict, setting, builder.carry(one.tree.root(), one));
    }
    if (step_) builder.tree().put(dict, "step", builder.tree().real(*step_));
    return dict;
  }

  // FSDP2's, whose groups say which numbers their parameters have, in the model's order.
  CommonState by_number(const std::vector<ParamGroup>& groups, const FiledState& model,
                        ckpt::Catalog& out) {
    std::vector<Value> stated;
    std::vector<uint32_t> numbers_of_groups;
    for (const auto& [number_of_group, objects] : groups_) {
      stated.push_back(builder_.tree().value(read_dict(objects, builder_, kept_)));
      numbers_of_groups.push_back(number_of_group);
    }
    if (stated.size() != groups.size()) {
      corrupt(std::string(kGroups), "there are " + std::to_string(stated.size()) +
                                        " groups; the model's parameters make " +
                                        std::to_string(groups.size()));
    }
    const std::vector<size_t> places = match_stated_groups(stated, groups);
    std::map<uint32_t, std::string> names;  // of numbers
    std::vector<NodeId> dicts;
    for (size_t g = 0; g < groups.size(); ++g) {
      const Value& group = stated[places[g]];
      dicts.push_back(group.id());
      add_members({groups[g], group, numbers_of_groups[places[g]]}, model, names, out);
      builder_.tree().erase(group.id(), "params");
    }
    if (!masters_.empty()) corrupt(masters_.begin()->second.key, "is of no group's parameter");
    for (auto& [state, tensors] : numbered_) {
      for (auto& [id, tensor] : tensors) {
        const auto name = names.find(id);
        if (name == names.end()) corrupt(tensor.key, "its number is in no group");
        add(std::move(tensor), state_key(state, name->second), out.tensors);
      }
    }
    return with_groups(groups, dicts);
  }

  struct NumberedGroup {
    const ParamGroup& members;
    const Value& stated;
    uint32_t number;
  };
  void add_members(const NumberedGroup& group, const FiledState& model,
                   std::map<uint32_t, std::string>& names, ckpt::Catalog& out) {
    const std::string key = std::string(kGroups) + std::to_string(group.number) + ".params";
    const auto ids = group.stated.find("params");
    if (!ids || !ids->is(Kind::List) || ids->size() != group.members.params.size()) {
      corrupt(key, "does not number the " + std::to_string(group.members.params.size()) +
                       " parameters of its group");
    }
    for (size_t i = 0; i < ids->size(); ++i) {
      const std::string& name = model.params.at(group.members.params[i].index).info.name;
      const int64_t id = (*ids)[i].as_int();
      if (id < 0 || id > UINT32_MAX || !names.emplace(static_cast<uint32_t>(id), name).second) {
        corrupt(key, "a number is there twice, or is none");
      }
      auto master = masters_.extract({group.number, static_cast<uint32_t>(i)});
      if (master.empty()) continue;
      add(std::move(master.mapped()), state_key(kMasterState, name), out.tensors);
    }
  }

  // {0: {'optimizer': {'param_groups': [...]}}, ...}, or of one optimizer without its number.
  CommonState with_groups(const std::vector<ParamGroup>& groups, const std::vector<NodeId>& dicts) {
    ValueTree& tree = builder_.tree();
    const NodeId root = builder_.carry(common_.document->tree.root(), *common_.document);
    std::map<uint32_t, NodeId> optimizers;
    std::map<uint32_t, NodeId> lists;
    for (size_t i = 0; i < groups.size(); ++i) {
      const uint32_t index = groups[i].optimizer_index;
      if (optimizers.try_emplace(index, ckpt::kNoNode).second) {
        lists[index] = tree.list();
        const NodeId inner = tree.dict();
        tree.put(inner, "param_groups", lists[index]);
        optimizers[index] = tree.dict();
        tree.put(optimizers[index], "optimizer", inner);
      }
      tree.append(lists[index], dicts[i]);
    }
    NodeId chain = optimizers.begin()->second;
    if (optimizers.size() > 1) {
      chain = tree.dict();
      for (const auto& [index, optimizer] : optimizers) {
        tree.set_item(chain, tree.integer(index), optimizer);
      }
    }
    tree.put(root, "optimizer", chain);
    return {common_.file, common_.key,
            std::make_shared<const Document>(builder_.finish_document(root))};
  }

  const OpenedTraining& source_;
  const ReadOptions& options_;
  CommonState common_;
  DType type_ = DType::Float32;
  NamedTensors weights_;
  std::set<std::string> stored_names_;  // of weights, halves apart
  std::vector<const ObjectEntry*> extra_states_;
  std::vector<ckpt::NotCarried> lost_;
  std::map<std::string, NamedTensors> states_;  // by state, of names
  std::map<std::string, std::vector<std::pair<uint32_t, TensorEntry>>> numbered_;
  std::map<std::pair<uint32_t, uint32_t>, TensorEntry> masters_;
  std::map<std::string, GroupObjects> metas_;  // of names
  std::map<uint32_t, GroupObjects> groups_;
  std::vector<const TensorEntry*> steps_;  // of parameters
  std::optional<double> step_;             // theirs
  bool has_rng_ = false;
  ckpt::ArchiveBuilder builder_;  // of the groups
  std::list<Document> kept_;      // storages are told apart by document
};

}  // namespace

FiledState read_state_dicts(const OpenedTraining& checkpoint, const ReadOptions& options) {
  return StateDictReader(checkpoint, options).run();
}

}  // namespace optim
