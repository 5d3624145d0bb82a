#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/box.h>
#include <training/training_state.h>

namespace optim {

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

}  // namespace optim
