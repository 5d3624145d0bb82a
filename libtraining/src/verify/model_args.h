#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/value.h>

#include "verify/checks.h"

// What contradicted_args() compares: what args say, and what the layers of a model have.
namespace optim {

// What args say under a name. nullopt where they do not have it, or have it as something else:
// nothing follows from that.
class StatedArgs {
 public:
  explicit StatedArgs(ckpt::Value args) : args_(args) {}

  std::optional<uint64_t> size(std::string_view name) const;  // a number above 0
  std::optional<bool> flag(std::string_view name) const;      // True or False
  bool is_set(std::string_view name) const { return flag(name).value_or(false); }
  std::optional<std::string_view> word(std::string_view name) const;  // a text
  std::optional<bool> is_number(std::string_view name) const;         // false: None
  // "8", "False", "'rope'", "not set": to come behind "is ".
  std::string text(std::string_view name) const;
  std::optional<ckpt::Value> find(std::string_view name) const { return args_.find(name); }

 private:
  ckpt::Value args_;
};

// "is STATED, but BUT".
ContradictedArg contradicted(std::string_view name, const std::string& stated,
                             const std::string& but,
                             ContradictedArg::Decides decides = ContradictedArg::Decides::Cut);
// "TENSOR has 4 rows": of axis 0, else columns.
std::string has_size(std::string_view tensor, uint64_t count, size_t axis);

// Each argument once: what is found of it first.
class ContradictedArgs {
 public:
  void add(std::optional<ContradictedArg> wrong);
  void add(std::vector<ContradictedArg> wrong) {
    for (ContradictedArg& one : wrong) add(std::optional(std::move(one)));
  }
  std::vector<ContradictedArg> take() { return std::move(found_); }

 private:
  std::vector<ContradictedArg> found_;
};

// What tells kinds of layers apart, by the rules' names.
inline constexpr std::string_view kLinearQkv = "self_attention.linear_qkv.weight";
inline constexpr std::string_view kLinearProj = "self_attention.linear_proj.weight";
inline constexpr std::string_view kLatentKvUp = "self_attention.linear_kv_up_proj.weight";
inline constexpr std::string_view kRouterWeight = "mlp.router.weight";
inline constexpr std::string_view kMlpFirst = "mlp.linear_fc1.weight";

// A transformer layer with nothing but Megatron's own modules: what it holds beside its experts, by
// the rules' names, and the second matrix of its first expert.
struct KnownLayer {
  std::string prefix;               // "decoder.layers.3."
  std::optional<uint32_t> decoder;  // its number in the decoder; nullopt: of multi-token prediction
  std::map<std::string_view, const ckpt::Extents*> tensors;
  const TrainedParam* expert = nullptr;

  bool has(std::string_view name) const { return tensors.contains(name); }
  // Of a matrix; 0: there is none.
  uint64_t size(std::string_view name, size_t axis) const;
  std::string name_of(std::string_view rule) const { return prefix + std::string(rule); }
};

// `state` must outlive them. Layers with a parameter that the built-in rules do not know, and those
// of other stacks, are left out.
std::vector<KnownLayer> known_layers(const TrainingState& state);

// Heads, query groups and channels against the matrices of attention, of the first layer that
// contradicts them. With h heads, g groups and k channels linear_proj has hk columns, linear_qkv
// (h + 2g)k rows: one of the three that is wrong is found and named where the two tell it from the
// others; two that are wrong together are not where both products stay (8 heads of 4 channels in 4
// groups for 4 heads of 8 in 2), unless a norm of queries has the channels.
std::vector<ContradictedArg> contradicted_attention(const std::vector<KnownLayer>& layers,
                                                    const StatedArgs& args);

// Arguments that decide which modules layers have and how wide they are, against what they have:
// experts, biases, norms, kinds of attention; each argument once.
std::vector<ContradictedArg> contradicted_modules(const std::vector<KnownLayer>& layers,
                                                  const StatedArgs& args);

}  // namespace optim
