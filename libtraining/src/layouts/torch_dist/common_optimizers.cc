// {0: {'optimizer': {'param_groups': [...], 'state': {'common_step': T}}, ...}, 1: ...} in the
// common state of torch_dist.
#include "layouts/torch_dist/common_optimizers.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "args/value_place.h"
#include "grid/placement.h"
#include "grid/sharing_of_params.h"
#include "grid/target_groups.h"
#include "layouts/job/tensor_attributes.h"
#include "model/tensor_names.h"
#include "state/state_values.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr std::string_view kCommonStep = "common_step";
constexpr std::string_view kShardingType = "param_state_sharding_type";
constexpr const char* kWhyOneOfTwo =
    ", found one; where the first pipeline stage has no experts, Megatron-Core up to 0.14 saves no "
    "settings of theirs, and loads none of it; --model-only converts the weights";

class OptimizerReader {
 public:
  OptimizerReader(const CommonStateOf& from, CommonBuilder& common, TrainingState& state)
      : from_(from),
        stated_(from.state),
        document_(*stated_.document),
        common_(common),
        state_(state) {}

  // {0: {...}, 1: {...}} for a chain, the state itself for one optimizer.
  void run(const std::vector<ParamGroup>& groups) {
    const auto optimizer = document_.tree.root().find("optimizer");
    if (!optimizer || !optimizer->is(Kind::Dict)) stated_.corrupt("/optimizer", "is missing");
    require_stated_form(*optimizer);
    const size_t count = groups.empty() ? 0 : groups.back().optimizer_index + 1;
    state_.chain.resize(count);
    const bool chained = optimizer->find(int64_t{0}).has_value();
    if ((chained ? optimizer->item_count() : 1) != count) {
      stated_.corrupt("/optimizer", "expected a chain of " + std::to_string(count) + " optimizers" +
                                        (chained ? "" : kWhyOneOfTwo));
    }
    for (size_t i = 0; i < count; ++i) {
      const auto state = chained ? optimizer->find(static_cast<int64_t>(i)) : optimizer;
      const std::string pointer = "/optimizer" + (chained ? "/" + std::to_string(i) : "");
      if (!state || !state->is(Kind::Dict)) stated_.corrupt(pointer, "is missing");
      if (from_.by_hooks.contains(static_cast<uint32_t>(i))) {
        require_no_groups(*state, pointer);
        continue;
      }
      read_optimizer(*state, pointer, state_.chain[i]);
      const auto own = groups_of_optimizer(groups, static_cast<uint32_t>(i));
      if (state_.chain[i].groups.size() != own.size()) {
        refuse_unknown_names();
        stated_.corrupt(pointer + "/optimizer/param_groups",
                        "holds " + std::to_string(state_.chain[i].groups.size()) +
                            " groups, but the model's parameters need " +
                            std::to_string(own.size()));
      }
      put_in_order(own, state_.chain[i].groups);
    }
  }

 private:
  // Megatron looks for the keys of the form that is stated here.
  void require_stated_form(const Value& optimizer) const {
    const std::string form = stated_sharding(document_.tree.root());
    if (!form.empty()) {
      const Filing* const any = from_.by_hooks.empty() ? nullptr : from_.by_hooks.begin()->second;
      require_form(form, any, "/content_metadata/distrib_optim_sharding_type");
    }
    const bool chained = optimizer.find(int64_t{0}).has_value();
    for (uint32_t i = 0; i < (chained ? optimizer.item_count() : 1); ++i) {
      const auto one = chained ? optimizer.find(int64_t{i}) : optimizer;
      const auto stated = one && one->is(Kind::Dict) ? one->find(kShardingType) : std::nullopt;
      if (!stated) continue;
      const std::string pointer =
          "/optimizer/" + (chained ? std::to_string(i) + "/" : "") + std::string(kShardingType);
      if (!stated->is(Kind::Str)) stated_.corrupt(pointer, "is not a string");
      if (form.empty()) {
        const auto own = from_.by_hooks.find(i);
        require_form(stated->text(), own == from_.by_hooks.end() ? nullptr : own->second, pointer);
      }
      if (form.empty() || stated->text() == form) continue;
      stated_.corrupt(pointer, "is '" + ckpt::escaped(stated->text()) + "', but '" +
                                   ckpt::escaped(form) + "' is stated, too");
    }
  }

  // `found`: by hooks; null: keys name the parameters.
  void require_form(std::string_view form, const Filing* found, const std::string& pointer) const {
    const auto stated = std::ranges::find(filings(), form, &Filing::name);
    const bool is_by_hooks =
        stated != filings().end() && ((*stated)->in_store != nullptr || (*stated)->in_order);
    if (found != nullptr ? form == found->name : !is_by_hooks) return;
    stated_.corrupt(pointer,
                    "is '" + ckpt::escaped(form) + "', but the optimizer's state is " +
                        (found == nullptr  ? std::string("not in flat buffers")
                         : found->in_order ? "in flat buffers, as of " + std::string(found->name)
                                           : std::string(found->name)));
  }

  // Of the groups that the model's parameters make.
  void put_in_order(std::span<const ParamGroup> groups, std::vector<NodeId>& nodes) {
    std::vector<Value> stated;
    for (const NodeId node : nodes) stated.push_back(common_.tree().value(node));
    std::vector<NodeId> ordered;
    for (const size_t place : match_stated_groups(stated, groups)) ordered.push_back(nodes[place]);
    nodes = std::move(ordered);
  }

  // Its copies of the model state their own.
  void require_no_groups(const Value& state, const std::string& pointer) const {
    for (const auto& [key, value] : ckpt::items_of(state)) {
      require_string(key, pointer);
      if (key.text() == kShardingType) continue;
      throw Error(ErrorCode::Unsupported,
                  {stated_.file, std::nullopt, stated_.key + pointer + "/" + ckpt::key_text(key)},
                  "the common state holds more of an optimizer than its flat buckets allow");
    }
  }

  // Which groups parameters make follows from their names.
  void refuse_unknown_names() const {
    for (const TrainedParam& param : state_.params) {
      if (rules_of(state_).find(param.info.name)) continue;
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                  "is not a parameter that the model rules know, so it is not known to which "
                  "group it belongs",
                  row_for(state_, param.info.name));
    }
  }

  void read_optimizer(const Value& state, const std::string& pointer, ChainedOptimizerState& out) {
    for (const auto& [key, value] : ckpt::items_of(state)) {
      require_string(key, pointer);
      if (key.text() == "optimizer" || key.text() == kShardingType) continue;
      out.others.emplace_back(key.text(), common_.carry(value, document_));
    }
    const auto inner = state.find("optimizer");
    if (!inner || !inner->is(Kind::Dict)) stated_.corrupt(pointer + "/optimizer", "is missing");
    for (const auto& [key, value] : ckpt::items_of(*inner)) {
      require_string(key, pointer + "/optimizer");
      if (key.text() == "state" || key.text() == "param_groups") continue;
      out.inner_others.emplace_back(key.text(), common_.carry(value, document_));
    }
    const auto groups = inner->find("param_groups");
    if (!groups || !groups->is(Kind::List)) {
      stated_.corrupt(pointer + "/optimizer/param_groups", "is missing");
    }
    for (size_t i = 0; i < groups->size(); ++i) {
      if (!(*groups)[i].is(Kind::Dict))
        stated_.corrupt(pointer + "/optimizer/param_groups", "is not a dict");
      out.groups.push_back(common_.carry((*groups)[i], document_));
    }
    read_common_step(*inner, pointer + "/optimizer/state/" + std::string(kCommonStep), out);
  }

  void require_string(const Value& key, const std::string& pointer) const {
    if (key.is(Kind::Str)) return;
    throw Error(ErrorCode::Unsupported,
                {stated_.file, std::nullopt, stated_.key + pointer + "/" + ckpt::key_text(key)},
                "the key is not a string");
  }

  void read_common_step(const Value& inner, const std::string& pointer,
                        ChainedOptimizerState& out) {
    const auto state = inner.find("state");
    if (!state) return;
    const bool is_known =
        state->is(Kind::Dict) && state->item_count() == (state->find(kCommonStep) ? size_t{1} : 0);
    if (!is_known) {
      throw Error(ErrorCode::Unsupported, {stated_.file, std::nullopt, stated_.key + pointer},
                  "the common state holds unknown state in addition to it");
    }
    if (state->item_count() == 0) return;
    if (const Value step = *state->find(kCommonStep); step.is(Kind::Int)) {
      out.step_layout = StepLayout::PerParamNumber;
      out.step_number = step.as_int();
      return;
    }
    const auto tensor = tensor_at(pointer, *state->find(kCommonStep));
    if (!tensor || !tensor->shape.empty()) stated_.corrupt(pointer, "is not a single number");
    note_what_a_step_loses({pointer, *state->find(kCommonStep), document_}, state_);
    out.step_layout = StepLayout::PerParam;
    out.step_dtype = tensor->dtype;
    out.step_bytes.resize(ckpt::count_bytes(*tensor));
    from_.source.read(*tensor, ckpt::whole({}), std::as_writable_bytes(std::span(out.step_bytes)));
  }

  // Of common.pt, or of the object in the store.
  std::optional<TensorEntry> tensor_at(const std::string& pointer, const Value& value) const {
    if (!ckpt::as_tensor(value)) return std::nullopt;
    if (!stated_.key.empty()) return tensors_of_object(document_, value, pointer).front();
    const TensorEntry* const found = keys_of(from_.source).find_tensor(pointer, stated_.file);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }

  const CommonStateOf& from_;
  const CommonState& stated_;
  const Document& document_;
  CommonBuilder& common_;
  TrainingState& state_;
};

// What Megatron leaves out of sharded state dicts, where it is None; the model's own have it: the
// output layer's, with tied embeddings, too, and of TransformerEngine each attention's, which is
// stored where the attention has a parameter (--softmax-type learnable); sparse attention has none.
void add_unsharded(TrainingState& state) {
  constexpr std::string_view kCoreExtraState = ".core_attention._extra_state";
  std::set<std::string> stored;
  for (const ModelEntry& entry : state.model) {
    if (entry.what == ModelEntry::What::ExtraState) stored.insert(entry.name);
    const size_t indexer = entry.name.find(".core_attention.indexer.");
    if (indexer == entry.name.npos) continue;
    stored.insert(entry.name.substr(0, indexer) + std::string(kCoreExtraState));
  }
  const auto add = [&](std::string name) {
    if (stored.contains(name)) return;
    state.model.push_back({ModelEntry::What::ExtraState, std::move(name), 0, std::nullopt});
  };
  const bool is_submodel = state.facts.divided_stack.starts_with(kLanguageModel);
  add(std::string(is_submodel ? kLanguageModel : "") + std::string(kOutputExtraState));
  if (state.facts.layer_norm_renamed) return;
  constexpr std::string_view kProjection = ".linear_proj.weight";
  for (size_t i = 0, count = state.model.size(); i < count; ++i) {
    const std::string_view name = state.model[i].name;
    if (!name.ends_with(kProjection)) continue;
    const std::string_view attention = name.substr(0, name.size() - kProjection.size());
    add(std::string(attention) + std::string(kCoreExtraState));
  }
}

// content_metadata says how Megatron laid out the rest of the checkpoint; a conversion writes its
// own.
constexpr std::string_view kContentMetadata = "content_metadata";
constexpr std::array<std::string_view, 4> kWrittenAnew{
    "distrib_optim_sharding_type", "distrib_optim_fully_reshardable_mem_efficient",
    "singleton_local_shards", "chained_optim_avoid_prefix"};

bool is_dict(const std::optional<Value>& value) { return value && value->is(Kind::Dict); }

class Losses {
 public:
  explicit Losses(const CommonState& common) : common_(common) {}

  std::vector<ckpt::NotCarried> run() {
    const Value root = common_.document->tree.root();
    if (const auto content = root.find(kContentMetadata)) add_content(*content);
    if (const auto optimizer = root.find("optimizer"); is_dict(optimizer)) {
      add_optimizers(*optimizer);
    }
    return std::move(losses_);
  }

 private:
  void add(const std::string& pointer, std::string reason) {
    losses_.push_back({common_.key + pointer, std::move(reason)});
  }

  void add_content(const Value& content) {
    const std::string pointer = "/" + std::string(kContentMetadata);
    if (!content.is(Kind::Dict)) return add(pointer, "it is not a dict, and is written anew");
    for (const auto& [key, value] : ckpt::items_of(content)) {
      const bool is_known = key.is(Kind::Str) && std::ranges::count(kWrittenAnew, key.text()) > 0;
      if (!is_known) {
        add(pointer + escaped_step(ckpt::key_text(key)),
            "content_metadata describes the layout of the "
            "checkpoint and is written anew");
      }
    }
  }

  // One, or several by their numbers.
  void add_optimizers(const Value& optimizer) {
    if (optimizer.find("optimizer")) return add_empty_state(optimizer, "/optimizer");
    for (const auto& [key, one] : ckpt::items_of(optimizer)) {
      add_empty_state(one, "/optimizer" + escaped_step(ckpt::key_text(key)));
    }
  }

  void add_empty_state(const Value& optimizer, const std::string& pointer) {
    if (!optimizer.is(Kind::Dict)) return;
    const auto inner = optimizer.find("optimizer");
    if (!is_dict(inner)) return;
    const auto state = inner->find("state");
    if (!is_dict(state) || state->item_count() != 0) return;
    add(pointer + "/optimizer/state", "an empty mapping, which is not written without a step");
  }

  const CommonState& common_;
  std::vector<ckpt::NotCarried> losses_;
};

}  // namespace

void read_common_optimizers(const CommonStateOf& from, const std::vector<ParamGroup>& groups,
                            CommonBuilder& common, TrainingState& state) {
  OptimizerReader(from, common, state).run(groups);
}

void order_model(TrainingState& state) {
  add_unsharded(state);
  order_by_rules(state);
}

std::string extra_state_beside(const std::string& weight, size_t dimensions,
                               const TrainingState& state) {
  const size_t dot = weight.rfind('.');
  if (dot == weight.npos || weight.compare(dot + 1, 6, "weight") != 0) return {};
  if (state.facts.layer_norm_renamed && dimensions < 2) return {};
  std::string name = weight.substr(0, dot + 1) + std::string(kExtraState);
  const auto known = rules_of(state).find(name);
  return known && !known->rule->unsharded ? name : std::string();
}

std::vector<ckpt::NotCarried> common_losses(const CommonState& common) {
  return Losses(common).run();
}

}  // namespace optim
