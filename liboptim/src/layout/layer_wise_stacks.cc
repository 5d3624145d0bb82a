// What torch_dist asks of a model: keys that are stacked over layers are one tensor each.
#include <map>
#include <set>
#include <string>
#include <utility>

#include <ckpt/error.h>

#include "layout/layer_wise_target.h"

namespace optim {
namespace {

using ckpt::TensorEntry;

constexpr const char* kHint =
    "--to torch and --to safetensors hold it as it is; ckpt-inspect verify SOURCE says more";

[[noreturn]] void refuse(const std::string& key, std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = key}, std::move(problem),
                    kHint);
}

// What lies under one stacked key, of all layers.
struct Stack {
  std::string first_name;              // of the first layer that was met
  const TensorEntry* first = nullptr;  // null: an object
  uint32_t layers_seen = 0;
};

class StackCheck {
 public:
  explicit StackCheck(const LayerWiseCheckpoint& source) : source_(source) {}

  void run() {
    for (const ModelEntry& entry : source_.model) {
      if (entry.name == kOutputExtraState) continue;
      if (!model_position(entry.name)) {
        refuse(entry.name, "its position in the model's order is unknown");
      }
      if (entry.what == ModelEntry::What::ExtraState) add("", entry.name, nullptr);
    }
    for (const LayerWiseParam& param : source_.params) add_param(param);
    for (const auto& [key, stack] : stacks_) check_is_whole(key, stack);
  }

 private:
  void add_param(const LayerWiseParam& param) {
    const auto [known, added] = first_of_optimizer_.emplace(param.optimizer, &param);
    if (!added && names(*known->second) != names(param)) refuse_states(param, *known->second);
    add("", param.info.name, tensor(param.info.name));
    const std::string master = state_key(kMasterState, "");
    add(master, param.info.name, tensor(master + param.info.name));
    for (const std::string& state : param.states) {
      const std::string prefix = state_key(state, "");
      add(prefix, param.info.name, tensor(prefix + param.info.name));
    }
  }

  const TensorEntry* tensor(const std::string& key) const {
    const TensorEntry* const found = source_.tensors.find_tensor(key);
    if (found == nullptr) refuse(key, "is not in the checkpoint");
    return found;
  }

  static std::set<std::string> names(const LayerWiseParam& param) {
    return {param.states.begin(), param.states.end()};
  }

  [[noreturn]] static void refuse_states(const LayerWiseParam& param, const LayerWiseParam& other) {
    refuse(param.info.name, "its optimizer states are " + list(param.states) + ", those of '" +
                                ckpt::escaped(other.info.name) + "' are " + list(other.states) +
                                "; torch_dist stores the same states of all parameters");
  }

  static std::string list(const std::vector<std::string>& states) {
    std::string text;
    for (const std::string& state : states) {
      text += (text.empty() ? "" : ", ") + ckpt::escaped(state);
    }
    return text.empty() ? "none" : text;
  }

  void add(const std::string& prefix, const std::string& name, const TensorEntry* tensor) {
    const ShardedName sharded = sharded_name(name, key_rules(source_));
    if (!sharded.layer) return;
    if (*sharded.layer >= source_.layer_count) {
      refuse(prefix + name,
             "belongs to a layer beyond args.num_layers = " + std::to_string(source_.layer_count));
    }
    Stack& stack = stacks_[prefix + sharded.key];
    if (stack.layers_seen++ == 0) {
      stack.first_name = prefix + name;
      stack.first = tensor;
    } else if (tensor != nullptr) {
      check_is_alike(stack, prefix + name, *tensor);
    }
  }

  static void check_is_alike(const Stack& stack, const std::string& key,
                             const TensorEntry& tensor) {
    if (tensor.dtype != stack.first->dtype) {
      refuse(key, "is " + std::string(ckpt::name(tensor.dtype)) + ", but '" +
                      ckpt::escaped(stack.first_name) + "' is " +
                      std::string(ckpt::name(stack.first->dtype)) +
                      "; torch_dist stacks both into one tensor");
    }
    if (tensor.shape != stack.first->shape) {
      refuse(key, "has a different shape from '" + ckpt::escaped(stack.first_name) +
                      "'; torch_dist stacks both into one tensor");
    }
  }

  void check_is_whole(const std::string& key, const Stack& stack) const {
    if (stack.layers_seen == source_.layer_count) return;
    refuse(key, std::to_string(stack.layers_seen) + " of the " +
                    std::to_string(source_.layer_count) +
                    " layers have it; torch_dist stacks all layers into one tensor");
  }

  const LayerWiseCheckpoint& source_;
  std::map<uint32_t, const LayerWiseParam*> first_of_optimizer_;
  std::map<std::string, Stack> stacks_;
};

}  // namespace

void check_stackable(const LayerWiseCheckpoint& source) { StackCheck(source).run(); }

}  // namespace optim
