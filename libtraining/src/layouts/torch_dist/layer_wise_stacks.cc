// What torch_dist asks of a model: keys that are stacked over layers and experts are one tensor
// each.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ckpt/printed.h>

#include "grid/target_groups.h"
#include "layouts/job/layer_wise_target.h"
#include "state/not_checked.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr const char* kHint =
    "--to torch and --to safetensors hold it as it is; ckpt-inspect verify SOURCE says more";
constexpr const char* kFrozenHint =
    "Megatron cannot save a model of which some layers are frozen so; --optimizer-sharding "
    "dp_reshardable holds it";

[[noreturn]] void refuse(const std::string& key, std::string problem, const char* hint = kHint) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = key}, std::move(problem), hint);
}

// What lies under one stacked key, of all layers.
struct Stack {
  std::string state;                   // empty: the weight, or an object
  std::string first_name;              // of the first layer that was met
  const TensorEntry* first = nullptr;  // null: an object
  uint64_t parts_seen = 0, parts_expected = 0;

  // Of its key, before what weight and states share.
  std::string prefix() const { return state.empty() ? "" : state_key(state, ""); }
};

class StackCheck {
 public:
  explicit StackCheck(const TargetJob& job)
      : job_(job), source_(job.source), rules_(key_rules(job.source)) {}

  void run() {
    for (const LayerStack& stack : source_.facts.stacks) {
      if (source_.facts.divided_stack.empty()) require_stated(stack);
      if (stack.are_keys_known) continue;
      refuse(stack.prefix,
             "it is not known whether torch_dist files its layer norms under the names of fused "
             "modules (transformer_impl local)");
    }
    for (const ModelEntry& entry : source_.model) {
      if (without_submodel(entry.name) == kOutputExtraState) continue;
      if (entry.what != ModelEntry::What::ExtraState) continue;
      const ShardedName sharded = sharded_name(entry.name, rules_);
      if (sharded.layer || sharded.expert) {
        add("", stacks_[sharded.key], {entry.name, sharded, nullptr});
      }
    }
    for (const TrainedParam& param : source_.params) add_param(param);
    std::map<std::string, const Stack*> in_order;
    for (const auto& [key, stacks] : stacks_) {
      for (const Stack& stack : stacks) in_order.emplace(stack.prefix() + key, &stack);
    }
    for (const auto& [key, stack] : in_order) check_is_whole(key, *stack);
  }

 private:
  // Megatron numbers a stack's layers by its module's configuration: where args alone say what that
  // is, they must say as many.
  void require_stated(const LayerStack& stack) const {
    const uint32_t common = source_.grid.pipeline.num_layers;
    const bool is_decoder = stack.prefix == kLayersPrefix;
    const auto own =
        number_in(source_.args(), is_decoder ? "decoder_num_layers" : "encoder_num_layers");
    if (stack.layers == common || own == stack.layers) return;
    refuse(stack.prefix, "has " + counted(stack.layers, "layer") +
                             ", but Megatron counts as many of an encoder and a decoder "
                             "(T5): args.num_layers = " +
                             std::to_string(common));
  }

  void add_param(const TrainedParam& param) {
    has_frozen_ = has_frozen_ || is_frozen(source_, param);
    const auto [known, added] = param.info.requires_grad
                                    ? first_of_optimizer_.emplace(param.optimizer, &param)
                                    : std::pair(first_of_optimizer_.end(), true);
    if (!added && !have_same_names(*known->second, param)) refuse_states(param, *known->second);
    const ShardedName sharded = sharded_name(param.info.name, rules_);
    if (!sharded.layer && !sharded.expert) return;
    std::vector<Stack>& stacks = stacks_[sharded.key];
    add("", stacks, {param.info.name, sharded, param.weight.get()});
    const bool has_state = param.master || !param.states.empty();
    if (!has_state || job_.filed.optimizers[param.optimizer]->in_store != nullptr) return;
    if (param.master) add(kMasterState, stacks, {param.info.name, sharded, param.master.get()});
    for (const auto& [state, value] : param.states) {
      add(state, stacks, {param.info.name, sharded, value.get()});
    }
  }

  static bool have_same_names(const TrainedParam& a, const TrainedParam& b) {
    return std::ranges::equal(a.states, b.states, {}, &StateTensor::name, &StateTensor::name) ||
           names(a) == names(b);
  }

  static std::set<std::string> names(const TrainedParam& param) {
    std::set<std::string> names;
    for (const StateTensor& state : param.states) names.insert(state.name);
    return names;
  }

  [[noreturn]] static void refuse_states(const TrainedParam& param, const TrainedParam& other) {
    refuse(param.info.name, "its optimizer states are " + list(param.states) + ", those of '" +
                                ckpt::escaped(other.info.name) + "' are " + list(other.states) +
                                "; torch_dist stores the same states of all parameters");
  }

  static std::string list(const std::vector<StateTensor>& states) {
    const auto name_of = [](const StateTensor& state) { return ckpt::escaped(state.name); };
    const std::string text = ckpt::joined(states, ", ", name_of);
    return text.empty() ? "none" : text;
  }

  // One layer's or expert's part of a stack.
  struct Part {
    const std::string& name;
    const ShardedName& sharded;
    const TensorEntry* tensor;  // null: an object
  };

  void add(std::string_view state, std::vector<Stack>& stacks, const Part& part) {
    const auto& [name, sharded, tensor] = part;
    auto found = std::ranges::find(stacks, state, &Stack::state);
    if (found == stacks.end()) {
      found = stacks.emplace(found);
      found->state = state;
    }
    Stack& stack = *found;
    const uint32_t layers = sharded.layer ? stack_rules(sharded.key, rules_).layers : 1;
    if (sharded.layer && *sharded.layer >= layers) {
      refuse(stack.prefix() + name,
             "belongs to a layer beyond args.num_layers = " + std::to_string(layers));
    }
    if (sharded.expert && *sharded.expert >= rules_.expert_count) {
      refuse(stack.prefix() + name, "belongs to an expert beyond args.num_experts = " +
                                        std::to_string(rules_.expert_count));
    }
    if (stack.parts_seen++ == 0) {
      stack.parts_expected =
          uint64_t{layers} * (sharded.expert ? rules_.expert_count : uint32_t{1});
      stack.first_name = stack.prefix() + name;
      stack.first = tensor;
    } else if (tensor != nullptr) {
      check_is_alike(stack, part);
    }
  }

  static void check_is_alike(const Stack& stack, const Part& part) {
    const TensorEntry& tensor = *part.tensor;
    if (tensor.dtype != stack.first->dtype) {
      refuse(stack.prefix() + part.name, "is " + std::string(ckpt::name(tensor.dtype)) + ", but '" +
                                             ckpt::escaped(stack.first_name) + "' is " +
                                             std::string(ckpt::name(stack.first->dtype)) +
                                             "; torch_dist stacks both into one tensor");
    }
    if (tensor.shape != stack.first->shape) {
      refuse(stack.prefix() + part.name, "has a different shape from '" +
                                             ckpt::escaped(stack.first_name) +
                                             "'; torch_dist stacks both into one tensor");
    }
  }

  void check_is_whole(const std::string& key, const Stack& stack) const {
    if (stack.parts_seen == stack.parts_expected) return;
    refuse(key,
           std::to_string(stack.parts_seen) + " of the " + std::to_string(stack.parts_expected) +
               " layers have it; torch_dist stacks all layers into one tensor",
           has_frozen_ ? kFrozenHint : kHint);
  }

  const TargetJob& job_;
  const TrainingState& source_;
  KeyRules rules_;
  bool has_frozen_ = false;
  std::map<uint32_t, const TrainedParam*> first_of_optimizer_;
  std::unordered_map<std::string, std::vector<Stack>> stacks_;  // by key, without prefix
};

}  // namespace

void check_stackable(const TargetJob& job) { StackCheck(job).run(); }

}  // namespace optim
