#include <optim/param_key.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <ckpt/glob.h>

#include "rules/refuse_key.h"

namespace optim {
namespace {

// Names of linear layers and of the dimension along which tensor parallelism splits their weights.
// A bias is split only where the output features are (dimension 0).
constexpr std::array<std::pair<std::string_view, int>, 6> kSplitLayers = {{{"linear_qkv", 0},
                                                                           {"linear_fc1", 0},
                                                                           {"linear_proj", 1},
                                                                           {"linear_fc2", 1},
                                                                           {"word_embeddings", 0},
                                                                           {"output_layer", 0}}};

// The last part of a name and the one before it: {"linear_fc1", "weight"}.
std::pair<std::string_view, std::string_view> last_parts(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {{}, name};
  const std::string_view module = name.substr(0, dot);
  return {module.substr(module.rfind('.') + 1), name.substr(dot + 1)};
}

int split_dimension(std::string_view layer, std::string_view kind) {
  for (const auto& [split_layer, dimension] : kSplitLayers) {
    if (layer != split_layer) continue;
    if (kind == "weight" || (kind == "bias" && dimension == 0)) return dimension;
  }
  return -1;
}

}  // namespace

bool ParamAttributes::truthy(std::string_view name) const {
  const std::array<std::pair<std::string_view, bool>, 8> known = {
      {{"allreduce", allreduce},
       {"tensor_model_parallel", tensor_model_parallel},
       {"shared", shared},
       {"is_embedding_or_output_parameter", is_embedding_or_output_parameter},
       {"is_qkv", is_qkv},
       {"expert_tp", expert_tp},
       {"use_muon", use_muon},
       {"partition_dim", partition_dim > 0}}};
  for (const auto& [known_name, value] : known) {
    if (name == known_name) return value;
  }
  return others.contains(std::string(name));
}

uint64_t element_count(const ParamInfo& param) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t count = 1;
  bool fits = true;
  for (const int64_t size : param.shape) {
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(size, 0));
    fits = fits && size >= 0 && (factor == 0 || count <= kMax / factor);
    count = fits ? count * factor : 0;
  }
  if (fits) return count;
  refuse_key(param.name, "the shape has a negative size or more than 2^63 - 1 elements");
}

ParamAttributes megatron_attributes(std::string_view name, size_t dim_count) {
  const auto has = [name](std::string_view part) { return name.find(part) != name.npos; };
  const auto [layer, kind] = last_parts(name);
  ParamAttributes attributes;
  attributes.partition_dim = split_dimension(layer, kind);
  attributes.tensor_model_parallel = attributes.partition_dim >= 0;
  attributes.is_embedding_or_output_parameter =
      kind == "weight" && (layer == "word_embeddings" || layer == "output_layer");
  attributes.is_qkv = has("linear_qkv.weight") && dim_count == 2;
  attributes.expert_tp = has("experts") && !has("shared");
  return attributes;
}

bool glob_matches(std::string_view glob, std::string_view text) {
  return ckpt::Glob(glob).matches(text);
}

bool ParamKey::matches(const ParamInfo& param, std::string_view param_name) const {
  return std::ranges::any_of(name, [&](const auto& g) { return glob_matches(g, param_name); }) ||
         std::ranges::any_of(attr, [&](const auto& a) { return param.attributes.truthy(a); }) ||
         std::ranges::any_of(predicate, [&](const auto& p) { return p(param); }) ||
         std::ranges::any_of(with_name_predicate,
                             [&](const auto& p) { return p(param, param_name); });
}

}  // namespace optim
