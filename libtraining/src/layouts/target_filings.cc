// Which filings a target gets, and what a training state becomes in them.
// Source: get_megatron_optimizer of megatron/core/optimizer/__init__.py, which optimizers there
// are; state_dict of megatron/core/optimizer/distrib_optimizer.py, where steps are.
#include "layouts/layouts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <training/training_state.h>

#include "grid/build_state.h"
#include "grid/target_groups.h"
#include "grid/whole_states.h"
#include "model/model_rules.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::Format;

// Args that Megatron got after core 0.18-dev. Source: megatron/core/transformer/enums.py of
// core_v0.18.0 on.
constexpr std::string_view kLaterClasses[] = {"InferenceCudaGraphScope", "CudaGraphModule"};

// Of an enumeration's value, or of one in a list of such; empty: none of those.
std::string later_class_in(const Value& value) {
  if (value.is(Kind::List) || value.is(Kind::Tuple)) {
    for (size_t i = 0; i < value.size(); ++i) {
      std::string found = later_class_in(value[i]);
      if (!found.empty()) return found;
    }
    return {};
  }
  if (value.is(Kind::Dict)) {
    for (size_t i = 0; i < value.item_count(); ++i) {
      std::string found = later_class_in(value.item(i).second);
      if (!found.empty()) return found;
    }
    return {};
  }
  const bool is_built = value.is(Kind::Object) && value.callable().is(Kind::Global);
  if (!is_built) return {};
  const std::string_view name = value.callable().name();
  return std::ranges::find(kLaterClasses, name) == std::end(kLaterClasses) ? std::string()
                                                                           : std::string(name);
}

std::vector<std::pair<std::string, std::string>> later_args_of(const TrainingState& state) {
  const Value args = state.args();
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [name, value] : ckpt::items_of(args)) {
    const std::string later = name.is(Kind::Str) ? later_class_in(value) : std::string();
    if (!later.empty()) found.emplace_back(name.text(), later);
  }
  return found;
}

// Takes out of args what Megatron-Core 0.16 has no class for, so that it could not load them,
// and lists it.
void drop_later_args(TrainingState& state) {
  for (const auto& [name, later] : later_args_of(state)) {
    state.common.tree.erase(state.args().id(), name);
    state.not_carried.push_back(
        {"args." + name, "Megatron-Core 0.16 has no class " + later + ", and could not load it"});
  }
}

const char* const kPossible =
    "torch_dist holds layer_wise, fully_reshardable and dp_reshardable; torch holds layer_wise and "
    "flat_file";

[[noreturn]] void refuse_filing(std::string problem, std::string hint = kPossible) {
  throw Error(ErrorCode::Unsupported, {}, std::move(problem), std::move(hint));
}

// A DistributedOptimizer keeps Adam's state alone.
const ParamGroup* first_without_adam(const std::vector<ParamGroup>& groups) {
  const auto found = std::ranges::find_if(
      groups, [](const ParamGroup& group) { return group.updated_by != "adam"; });
  return found == groups.end() ? nullptr : &*found;
}

// Of a DistributedOptimizer's in another container.
const Filing* nearest(const Filing* source, Format container) {
  const auto found = std::ranges::find_if(
      filings(), [&](const Filing* one) { return one->by_elements && one->fits(container); });
  return source->fits(container) || found == filings().end() ? source : *found;
}

// Whether a DistributedOptimizer keeps this optimizer beside LayerWise ones: where none does yet,
// those whose groups name the algorithm, which Muon's do not.
bool is_distributed_beside(const FiledState& state, size_t index) {
  const FiledAs& filed = state.filed;
  if (filed.is_layer_wise && filed.release->distributes_adam) {
    return filed.optimizers.at(index)->by_elements;
  }
  const auto& groups = state.chain[index].groups;
  return !groups.empty() && state.common.tree.value(groups[0]).find("optimizer").has_value();
}

bool distributes_half(const FiledAs& filed) {
  return filed.is_layer_wise && filed.release->distributes_adam;
}

// Args must not hold what Megatron-Core 0.16 cannot load. No other Megatron reads LayerWise
// rank files, or LayerWise state as that one files it.
bool is_for_april(const FiledState& source, const FiledAs& target, const FilingChange& change) {
  const bool leaves_halves = source.filed.release->distributes_adam &&
                             target.release == &kCore016 && !target.optimizers.empty();
  return change.release == &kCore016 || (leaves_halves && target.is_layer_wise);
}

class Refiling {
 public:
  Refiling(const FiledState& source, const FiledAs& target) : source_(source), target_(target) {}

  FiledState run(const FilingChange& change, const ParallelSizes& sizes) {
    set_args(change.buckets);
    if (is_for_april(source_, target_, change)) drop_later_args(state_);
    state_.filed = target_;
    state_.filed.container = source_.filed.container;
    if (target_.is_zero1() || is_another_chain()) chain_anew(sizes);
    for (size_t i = 0; i < state_.chain.size(); ++i) {
      if (!state_.filed.optimizers[i]->by_elements) continue;
      put_steps_into_groups(state_.common.tree, state_.chain[i]);
    }
    return std::move(state_);
  }

 private:
  ValueTree& tree() { return state_.common.tree; }

  bool is_another_chain() const {
    const FiledAs& source = source_.filed;
    return target_.is_layer_wise != source.is_layer_wise ||
           (!target_.is_layer_wise && target_.optimizers != source.optimizers);
  }

  // --- args ---

  void put(std::string_view name, NodeId value) { tree().put(state_.args().id(), name, value); }
  // One that this Megatron knows.
  void set(std::string_view name, bool value) {
    if (state_.args().find(name)) put(name, tree().boolean(value));
  }

  // Up to core 0.18-dev args of other runs do not have it.
  void set_layer_wise() {
    constexpr const char* kName = "use_layer_wise_distributed_optimizer";
    if (target_.is_layer_wise == source_.filed.is_layer_wise) return;
    if (target_.is_layer_wise || source_.filed.release->distributes_adam) {
      put(kName, tree().boolean(target_.is_layer_wise));
    } else {
      tree().erase(state_.args().id(), kName);
    }
  }

  void set_args(const BucketChange& buckets) {
    if (is_another_chain()) {
      set_layer_wise();
      put("use_distributed_optimizer", tree().boolean(target_.is_zero1()));
      if (target_.is_zero1()) set("use_torch_fsdp2", false);  // Megatron refuses both together
    }
    const bool has_half = distributes_half(target_);
    if (target_.is_zero1() || has_half || is_another_chain()) {
      set("dist_ckpt_optim_fully_reshardable",
          target_.only() == &kByName || (has_half && !target_.has_store_hooks()));
    }
    set_buckets(buckets);
  }

  void set_buckets(const BucketChange& buckets) {
    if (buckets.pad_for_high_nccl_busbw) {
      put("ddp_pad_buckets_for_high_nccl_busbw", tree().boolean(true));
    }
    if (buckets.size == BucketChange::Size::AsSource) return;
    put("overlap_grad_reduce", tree().boolean(buckets.size != BucketChange::Size::One));
    // Which Megatron allows with overlap_grad_reduce alone.
    if (buckets.size == BucketChange::Size::One) set("overlap_param_gather", false);
    put("ddp_num_buckets", tree().none());
    put("ddp_bucket_size", buckets.size == BucketChange::Size::Given
                               ? tree().integer(static_cast<int64_t>(buckets.element_count))
                               : tree().none());
  }

  // --- the chain ---

  // Args now say which optimizers there are; each has what those of its parameters had.
  void chain_anew(const ParallelSizes& sizes) {
    if (source_.chain.empty()) return;
    const TargetGroups groups = target_groups(state_, sizes);
    std::vector<ChainedOptimizerState> chain;
    std::vector<const ChainedOptimizerState*> first;
    std::vector<const Filing*>& filed = state_.filed.optimizers;
    filed.clear();
    for (size_t i = 0; i < groups.groups.size(); ++i) {
      const uint32_t optimizer = groups.optimizer[i];
      if (chain.size() <= optimizer) {
        chain.resize(optimizer + 1);
        first.resize(optimizer + 1);
        filed.resize(optimizer + 1, target_.optimizers[0]);
      }
      for (const GroupedParam& param : groups.groups[i].params) {
        const uint32_t old = source_.params[param.index].optimizer;
        const ChainedOptimizerState& of = source_.chain.at(old);
        if (first[optimizer] == nullptr) {
          chain[optimizer] = as_first(of);
          first[optimizer] = &of;
          filed[optimizer] = target_.optimizers[old];
        }
        if (first[optimizer] != &of) require_equal(*first[optimizer], of, param.info.name);
      }
      const NodeId group = tree().copy(state_.common.tree.value(groups.stated[i]));
      put_flag(group, groups.groups[i].is_expert_parallel);
      chain[optimizer].groups.push_back(group);
    }
    state_.chain = std::move(chain);
    group_params(state_.args(), sizes, state_.params);
    if (is_another_chain()) lose_rank_items();
  }

  static ChainedOptimizerState as_first(const ChainedOptimizerState& of) {
    ChainedOptimizerState optimizer = of;
    optimizer.groups.clear();
    return optimizer;
  }

  void put_flag(NodeId group, bool is_expert_parallel) {
    const auto known = tree().value(group).find("is_expert_parallel");
    if (known && known->is(Kind::Bool)) {
      tree().put(group, "is_expert_parallel", tree().boolean(is_expert_parallel));
    }
  }

  // Dense parameters and experts that get one optimizer.
  void require_equal(const ChainedOptimizerState& a, const ChainedOptimizerState& b,
                     const std::string& param) const {
    if (are_alike(source_.common.tree, a, b)) return;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = param},
                "its optimizer would be one with that of other parameters, whose step or further "
                "state differs",
                "with --ep above 1 experts keep an optimizer of their own");
  }

  // What only some ranks state has no place in files of other ranks.
  void lose_rank_items() {
    for (const RankItem& item : source_.rank_items) {
      state_.not_carried.push_back({item.name, "not all ranks state it, and equally", item.name});
    }
    state_.rank_items.clear();
  }

  const FiledState& source_;
  const FiledAs& target_;
  FiledState state_ = source_;
};

// Where the chain, its groups or args would not be those of the source.
bool is_filed_so(const FiledState& source, const FiledAs& target, const FilingChange& change,
                 const ParallelSizes& sizes) {
  if (is_for_april(source, target, change) && !later_args_of(source).empty()) return false;
  if (source.chain.empty()) return true;
  const bool is_same_chain = sizes.expert_parallel == source.grid.sizes.expert_parallel &&
                             are_experts_apart(source.args(), sizes) ==
                                 are_experts_apart(source.args(), source.grid.sizes);
  FiledAs as_source = source.filed;
  as_source.container = target.container;
  return target == as_source && change.buckets.empty() && (!target.is_zero1() || is_same_chain);
}

// Which filing is meant: of the whole chain, or of the half that is no Muon's.
class Choice {
 public:
  Choice(const FiledState& source, const FiledAs& target)
      : source_(source),
        target_(target),
        has_half_(target.release->distributes_adam && target.container == Format::TorchDist) {
    const FiledAs& filed = source.filed;
    chain_ = filed.is_layer_wise ? &kDealt : filed.optimizers[0];
    if (chain_->by_elements) {
      chain_ = nearest(chain_, target.container);
    } else if (has_half_ && filed.has_by_elements()) {
      half_ = filed.first_by_elements();
    }
  }

  void ask_for(const Filing& filing) {
    const auto groups = groups_in_brief(source_);
    const ParamGroup* const other = first_without_adam(groups);
    const bool fits = filing.fits(target_.container);
    if (other != nullptr && has_half_ && fits && &filing != &kDealt) {
      half_ = filing.by_elements ? &filing : &kByName;
      return;
    }
    if (!fits) {
      refuse_filing(std::string(ckpt::name(target_.container)) +
                    " checkpoints cannot be written as " + std::string(filing.name));
    }
    if (other != nullptr && filing.by_elements) {
      refuse_filing("the state of " + other->updated_by + " cannot be written as " +
                        std::string(filing.name) +
                        ": a DistributedOptimizer keeps Adam's state, by ranges of elements",
                    "--optimizer-sharding layer_wise; with --target-megatron 0.19 the option is "
                    "about the AdamW beside it");
    }
    chain_ = &filing;
  }

  void file(FiledAs& target) const {
    target.is_layer_wise = chain_ == &kDealt;
    for (size_t i = 0; i < source_.chain.size(); ++i) {
      const bool is_of_half = distributes_half(target) && is_distributed_beside(source_, i);
      target.optimizers.push_back(is_of_half ? half_ : chain_);
    }
  }

 private:
  const FiledState& source_;
  const FiledAs& target_;
  bool has_half_;  // of the chain, if that is LayerWise
  const Filing* chain_;
  const Filing* half_ = &kByName;
};

// What releases file differently is optimizer state, but for where torch_dist has its common state;
// and without Muon there is no half. Rank files are one form.
bool is_as_of_april(const FiledAs& target) {
  const bool is_alone = target.optimizers.empty();
  if (target.release == &kCore018) return is_alone || !target.is_layer_wise;
  return target.has(kFlatFile) ||
         (is_alone && target.container == Format::Torch && !target.is_layer_wise);
}

// Since core 0.19 parameters of Mamba's are the mixer's own: they come first, and flat buffers have
// the order in which they are registered. Rows of the rules that args choose between say which.
void require_order_of(const Release& release, const FiledState& source, const FiledAs& target) {
  const bool is_in_order = std::ranges::any_of(target.optimizers, &Filing::in_order);
  if (!is_in_order || source.rules == nullptr) return;
  const bool is_new_release = &release == &kCore019;
  for (const ModelRule& row : source.rules->rows()) {
    if (row.when.empty()) continue;
    const std::string& other = is_new_release ? row.key : row.name;
    const auto found = std::ranges::find_if(source.params, [&](const TrainedParam& param) {
      const auto in_layer = split_layer(param.info.name);
      return in_layer && in_layer->rest == other;
    });
    if (found == source.params.end()) continue;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = found->info.name},
                std::string(release.title) +
                    " registers it under another name at another place, so that its flat buffers "
                    "have another order",
                "--optimizer-sharding fully_reshardable has names instead");
  }
}

}  // namespace

FiledAs choose_filings(const FiledState& source, Format container, const FilingChange& change) {
  FiledAs target{container, &kCore016, source.filed.is_layer_wise};
  if (container == Format::TorchDist) target.release = source.filed.release;
  if (change.release != nullptr) target.release = change.release;
  if (!source.chain.empty()) {
    Choice choice(source, target);
    if (change.filing != nullptr) choice.ask_for(*change.filing);
    choice.file(target);
  }
  if (change.release != nullptr) require_order_of(*change.release, source, target);
  if (is_as_of_april(target)) target.release = &kCore016;
  return target;
}

std::shared_ptr<const FiledState> filed_as(const FiledState& source, const FiledAs& target,
                                           const FilingChange& change, const ParallelSizes& sizes) {
  if (!change.buckets.empty() && !target.is_zero1() && !distributes_half(target)) {
    throw Error(ErrorCode::InvalidArgument, {},
                "--bucket-size and --pad-buckets are about flat buffers of a DistributedOptimizer, "
                "which " +
                    std::string((target.is_layer_wise ? kDealt : kWhole).name) + " does not have");
  }
  if (is_filed_so(source, target, change, sizes)) return nullptr;
  return std::make_shared<const FiledState>(Refiling(source, target).run(change, sizes));
}

}  // namespace optim
