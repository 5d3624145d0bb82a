#include "verify/args_check.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>

#include "model/stage_names.h"

namespace optim {
namespace {

constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight";
constexpr std::string_view kDecoderLayers = "decoder.layers.";

std::optional<uint64_t> arg(const TrainingState& state, std::string_view name) {
  const auto value = state.args().find(name);
  const bool is_size = value && value->is(ckpt::Kind::Int) && value->as_int() > 0;
  return is_size ? std::optional(static_cast<uint64_t>(value->as_int())) : std::nullopt;
}

ContradictedArg contradiction(std::string_view name, uint64_t stated, std::string_view but) {
  return {std::string(name), "is " + std::to_string(stated) + ", but " + std::string(but)};
}

std::optional<ContradictedArg> of_embedding(const TrainingState& state) {
  const auto found = std::ranges::find_if(state.params, [](const TrainedParam& param) {
    return param.info.name == kEmbedding && param.weight && param.weight->shape.size() == 2;
  });
  if (found == state.params.end()) return std::nullopt;
  const ckpt::Extents& shape = found->weight->shape;
  for (const auto& [name, axis, what] :
       {std::tuple("padded_vocab_size", 0, " rows"), std::tuple("hidden_size", 1, " columns")}) {
    const auto stated = arg(state, name);
    const uint64_t has = shape[static_cast<size_t>(axis)];
    if (!stated || *stated == has) continue;
    return contradiction(name, *stated,
                         std::string(kEmbedding) + " has " + std::to_string(has) + what);
  }
  return std::nullopt;
}

// The numbers of decoder layers and of experts that names have.
struct Numbers {
  std::set<std::string> layers;
  std::set<uint32_t> experts;
};

Numbers numbers_in(const TrainingState& state) {
  Numbers numbers;
  for (const TrainedParam& param : state.params) {
    const std::string& name = param.info.name;
    if (name.starts_with(kDecoderLayers)) {
      const size_t begin = kDecoderLayers.size();
      numbers.layers.insert(name.substr(begin, name.find('.', begin) - begin));
    }
    if (const auto expert = expert_in(name)) numbers.experts.insert(expert->number);
  }
  return numbers;
}

std::optional<ContradictedArg> of_numbers(const TrainingState& state) {
  const Numbers numbers = numbers_in(state);
  const uint64_t layers = state.grid.pipeline.num_layers, experts = state.facts.expert_count;
  if (!numbers.layers.empty() && layers != 0 && numbers.layers.size() != layers) {
    return contradiction(
        "num_layers", layers,
        "the model has parameters of " + std::to_string(numbers.layers.size()) + " decoder layers");
  }
  if (!numbers.experts.empty() && experts != 0 && numbers.experts.size() != experts) {
    return contradiction(
        "num_experts", experts,
        "the model has parameters of " + std::to_string(numbers.experts.size()) + " experts");
  }
  return std::nullopt;
}

}  // namespace

std::optional<ContradictedArg> contradicted_arg(const TrainingState& state) {
  if (auto of_shape = of_embedding(state)) return of_shape;
  return of_numbers(state);
}

void check_args(const TrainingState& state, VerifyReport& report) {
  const auto found = contradicted_arg(state);
  if (!found) return;
  report.findings.findings.push_back(
      {ckpt::CheckKind::Meaning,
       ckpt::Severity::Damage,
       {.file = {}, .key = "args." + found->name},
       found->problem,
       "the arguments may be those of a different run, or parameters are missing"});
}

}  // namespace optim
