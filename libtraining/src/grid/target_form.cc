// Forms of optimizer state: which is written, and what a training state becomes in it.
// Source: get_megatron_optimizer of megatron/core/optimizer/__init__.py, which optimizers there
// are; state_dict of megatron/core/optimizer/distrib_optimizer.py, where steps are.
#include "grid/target_form.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ckpt/error.h>

#include "grid/later_args.h"
#include "grid/layer_wise_view.h"
#include "grid/optimizer_steps.h"
#include "grid/target_groups.h"
#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Format;
using ckpt::Kind;
using ckpt::NodeId;
using ckpt::ValueTree;

const char* const kPossible =
    "torch_dist holds layer_wise, fully_reshardable and dp_reshardable; torch holds layer_wise and "
    "flat_file";

[[noreturn]] void refuse(std::string problem, std::string hint = kPossible) {
  throw Error(ErrorCode::Unsupported, {}, std::move(problem), std::move(hint));
}

// A DistributedOptimizer keeps Adam's state alone.
const ParamGroup* first_without_adam(const std::vector<ParamGroup>& groups) {
  const auto found = std::ranges::find_if(
      groups, [](const ParamGroup& group) { return group.updated_by != "adam"; });
  return found == groups.end() ? nullptr : &*found;
}

// Of a source that is filed by a DistributedOptimizer.
OptimizerSharding nearest(OptimizerSharding source, Format container) {
  if (container == Format::Torch) return OptimizerSharding::FlatFile;
  return source == OptimizerSharding::DpReshardable ? OptimizerSharding::DpReshardable
                                                    : OptimizerSharding::FullyReshardable;
}

bool has_form(Format container, OptimizerSharding sharding) {
  switch (sharding) {
    case OptimizerSharding::FullyReshardable:
    case OptimizerSharding::DpReshardable: return container == Format::TorchDist;
    case OptimizerSharding::FlatFile: return container == Format::Torch;
    case OptimizerSharding::FlattenedRange:
    case OptimizerSharding::DpZeroGatherScatter: return false;
    default: return true;
  }
}

void require_form(const TargetForm& form) {
  if (has_form(form.container, form.sharding)) return;
  refuse(std::string(ckpt::name(form.container)) + " checkpoints cannot be written as " +
         std::string(name(form.sharding)));
}

// Whether an optimizer of August 2026 is a DistributedOptimizer beside LayerWise ones: one whose
// groups name the algorithm, which Muon's do not.
bool is_other_half(const TrainingState& state, const ChainedOptimizerState& optimizer) {
  return !optimizer.groups.empty() &&
         state.common.tree.value(optimizer.groups[0]).find("optimizer").has_value();
}

class Filing {
 public:
  Filing(const TrainingState& source, const TargetForm& form) : source_(source), form_(form) {}

  TrainingState run(const BucketChange& buckets, const ParallelSizes& sizes) {
    set_args(buckets);
    if (form_.is_for_april) drop_later_args(state_);
    state_.sharding = form_.sharding;
    state_.era = form_.era;
    if (is_zero1(form_.sharding) || form_.sharding != source_.sharding) {
      chain_anew(sizes);
      lose_rank_items();
    }
    for (ChainedOptimizerState& optimizer : state_.chain) file(optimizer);
    return std::move(state_);
  }

 private:
  ValueTree& tree() { return state_.common.tree; }

  // --- args ---

  void put(std::string_view name, NodeId value) { tree().put(state_.args().id(), name, value); }
  // One that this Megatron knows.
  void set(std::string_view name, bool value) {
    if (state_.args().find(name)) put(name, tree().boolean(value));
  }

  // Up to April 2026 args of other runs do not have it.
  void set_layer_wise(bool is_layer_wise) {
    constexpr const char* kName = "use_layer_wise_distributed_optimizer";
    if (is_layer_wise == (source_.sharding == OptimizerSharding::LayerWise)) return;
    if (is_layer_wise || has_halves(source_.era)) {
      put(kName, tree().boolean(is_layer_wise));
    } else {
      tree().erase(state_.args().id(), kName);
    }
  }

  void set_args(const BucketChange& buckets) {
    if (form_.sharding != source_.sharding) {
      set_layer_wise(form_.sharding == OptimizerSharding::LayerWise);
      put("use_distributed_optimizer", tree().boolean(is_zero1(form_.sharding)));
    }
    const bool is_of_halves =
        form_.sharding == OptimizerSharding::LayerWise && has_halves(form_.era);
    if (is_zero1(form_.sharding) || is_of_halves || form_.sharding != source_.sharding) {
      set("dist_ckpt_optim_fully_reshardable",
          form_.sharding == OptimizerSharding::FullyReshardable ||
              (is_of_halves && !form_.is_half_bucketed));
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
    for (size_t i = 0; i < groups.groups.size(); ++i) {
      const uint32_t optimizer = groups.optimizer[i];
      if (chain.size() <= optimizer) {
        chain.resize(optimizer + 1);
        first.resize(optimizer + 1);
      }
      for (const GroupedParam& param : groups.groups[i].params) {
        const ChainedOptimizerState& of = source_.chain.at(source_.params[param.index].optimizer);
        if (first[optimizer] == nullptr) chain[optimizer] = as_first(of);
        if (first[optimizer] == nullptr) first[optimizer] = &of;
        if (first[optimizer] != &of) require_equal(*first[optimizer], of, param.info.name);
      }
      const NodeId group = tree().copy(state_.common.tree.value(groups.stated[i]));
      put_flag(group, groups.groups[i].is_expert_parallel);
      chain[optimizer].groups.push_back(group);
    }
    state_.chain = std::move(chain);
    group_params(state_.args(), sizes, state_.params);
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
    const auto are_equal = [&](const auto& one, const auto& other) {
      return std::ranges::equal(one, other, [&](const auto& x, const auto& y) {
        return x.first == y.first && !first_difference(source_.common.tree.value(x.second),
                                                       source_.common.tree.value(y.second));
      });
    };
    const bool is_one = a.step_layout == b.step_layout && a.step_bytes == b.step_bytes &&
                        a.step_number == b.step_number && are_equal(a.others, b.others) &&
                        are_equal(a.inner_others, b.inner_others);
    if (is_one) return;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = param},
                "its optimizer would be one with that of other parameters, whose step or further "
                "state differs",
                "with --ep above 1 experts keep an optimizer of their own");
  }

  void file(ChainedOptimizerState& optimizer) {
    const bool is_of_halves =
        form_.sharding == OptimizerSharding::LayerWise && has_halves(form_.era);
    optimizer.is_distributed =
        is_zero1(form_.sharding) || (is_of_halves && is_other_half(state_, optimizer));
    optimizer.is_bucketed =
        optimizer.is_distributed &&
        (form_.sharding == OptimizerSharding::DpReshardable || form_.is_half_bucketed);
    if (optimizer.is_distributed) put_steps_into_groups(state_.common.tree, optimizer);
  }

  // What only some ranks state has no place in files of other ranks.
  void lose_rank_items() {
    if (form_.sharding == source_.sharding) return;
    for (const RankItem& item : source_.rank_items) {
      state_.not_carried.push_back({item.name, "not all ranks state it, and equally", item.name});
    }
    state_.rank_items.clear();
  }

  const TrainingState& source_;
  const TargetForm& form_;
  TrainingState state_ = source_;
};

// Where the chain, its groups or args would not be those of the source.
bool is_filed_so(const TrainingState& source, const TargetForm& form, const BucketChange& buckets,
                 const ParallelSizes& sizes) {
  if (form.is_for_april && has_later_args(source)) return false;
  if (source.chain.empty()) return true;
  const bool is_same_chain = sizes.expert_parallel == source.grid.sizes.expert_parallel &&
                             are_experts_apart(source.args(), sizes) ==
                                 are_experts_apart(source.args(), source.grid.sizes);
  const bool has_its_chain = !is_zero1(form.sharding) || is_same_chain;
  return form.sharding == source.sharding && form.era == source.era && buckets.empty() &&
         form.is_half_bucketed ==
             (form.sharding == OptimizerSharding::LayerWise && has_bucketed(source)) &&
         has_its_chain;
}

// What eras and shardings file differently is optimizer state, but for where torch_dist has its
// common state.
TargetForm form_of_model_alone(TargetForm form) {
  const bool is_one_form =
      form.container == Format::Torch && form.sharding != OptimizerSharding::LayerWise;
  if (is_one_form || form.era == StoreLayout::Core018) form.era = StoreLayout::April2026;
  return form;
}

}  // namespace

bool is_zero1(OptimizerSharding sharding) {
  return sharding != OptimizerSharding::None && sharding != OptimizerSharding::LayerWise;
}

bool has_distributed(const TrainingState& state) {
  return std::ranges::any_of(state.chain, &ChainedOptimizerState::is_distributed);
}

bool has_bucketed(const TrainingState& state) {
  return std::ranges::any_of(state.chain, &ChainedOptimizerState::is_bucketed);
}

std::string_view name(OptimizerSharding sharding) {
  switch (sharding) {
    case OptimizerSharding::None: return "none";
    case OptimizerSharding::LayerWise: return "layer_wise";
    case OptimizerSharding::FullyReshardable: return "fully_reshardable";
    case OptimizerSharding::DpReshardable: return "dp_reshardable";
    case OptimizerSharding::FlatFile: return "flat_file";
    case OptimizerSharding::FlattenedRange: return "fully_sharded_model_space";
    case OptimizerSharding::DpZeroGatherScatter: return "dp_zero_gather_scatter";
  }
  return "";
}

TargetForm target_form(const TrainingState& source, Format container, const FormChange& change) {
  TargetForm form{container, source.sharding, StoreLayout::April2026};
  const bool is_dist = container == Format::TorchDist;
  form.era = change.layout.value_or(is_dist ? source.era : StoreLayout::April2026);
  form.is_for_april = change.layout == StoreLayout::April2026;
  if (source.chain.empty()) return form_of_model_alone(std::move(form));
  const bool is_from_zero1 = is_zero1(source.sharding);
  if (is_from_zero1) form.sharding = nearest(source.sharding, container);
  const bool has_half = has_halves(form.era) && is_dist;
  if (has_half) form.is_half_bucketed = !is_from_zero1 && has_bucketed(source);
  if (change.sharding) {
    const auto groups = groups_in_brief(source);
    const ParamGroup* const other = first_without_adam(groups);
    if (other != nullptr && has_half && has_form(container, *change.sharding) &&
        *change.sharding != OptimizerSharding::LayerWise) {
      form.is_half_bucketed = *change.sharding == OptimizerSharding::DpReshardable;
    } else {
      form.sharding = *change.sharding;
      if (form.sharding != OptimizerSharding::LayerWise) form.is_half_bucketed = false;
      require_form(form);
      if (other != nullptr && is_zero1(form.sharding)) {
        refuse("the state of " + other->updated_by + " cannot be written as " +
                   std::string(name(form.sharding)) +
                   ": a DistributedOptimizer keeps Adam's state, by ranges of elements",
               "--optimizer-sharding layer_wise; with --target-megatron 2026-08 the option is "
               "about the AdamW beside it");
      }
    }
  }
  // No other Megatron reads LayerWise rank files, or LayerWise state in that layout.
  const bool leaves_halves = has_halves(source.era) && form.era == StoreLayout::April2026;
  if (leaves_halves && form.sharding == OptimizerSharding::LayerWise) form.is_for_april = true;
  // Rank files of both eras are one form.
  if (form.sharding == OptimizerSharding::FlatFile) form.era = StoreLayout::April2026;
  // Without Muon there is no half: 0.18 files ZeRO-1 state as April's Megatron does.
  const bool is_of_018 = form.era == StoreLayout::Core018;
  if (is_of_018 && form.sharding != OptimizerSharding::LayerWise) {
    form.era = StoreLayout::April2026;
  }
  return form;
}

std::shared_ptr<const TrainingState> filed_as(const TrainingState& source, const TargetForm& form,
                                              const BucketChange& buckets,
                                              const ParallelSizes& sizes) {
  const bool has_buckets = is_zero1(form.sharding) ||
                           (form.sharding == OptimizerSharding::LayerWise && has_halves(form.era));
  if (!buckets.empty() && !has_buckets) {
    throw Error(ErrorCode::InvalidArgument, {},
                "--bucket-size and --pad-buckets are about flat buffers of a DistributedOptimizer, "
                "which " +
                    std::string(name(form.sharding)) + " does not have");
  }
  if (is_filed_so(source, form, buckets, sizes)) return nullptr;
  return std::make_shared<const TrainingState>(Filing(source, form).run(buckets, sizes));
}

}  // namespace optim
