#include "model/stage_names.h"

#include <charconv>

#include <ckpt/error.h>

#include "model/model_rules.h"

namespace optim {
namespace {

std::optional<NumberInName> number_at(std::string_view name, size_t begin) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + begin, name.data() + name.size(), number);
  if (error != std::errc()) return std::nullopt;
  return NumberInName{begin, static_cast<size_t>(end - name.data()), number};
}

// The number behind `before`, up to the next dot; nothing in front of `begin` is looked at.
std::optional<NumberInName> number_behind(std::string_view name, std::string_view before,
                                          size_t begin = 0) {
  const size_t found = name.find(before, begin);
  if (found == name.npos) return std::nullopt;
  const auto number = number_at(name, found + before.size());
  if (!number || number->end == name.size() || name[number->end] != '.') return std::nullopt;
  return number;
}

// Where ".experts." is. Names of 10^6 parameters are asked, which have many dots, and hardly an x.
size_t find_experts(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  constexpr size_t kPlaceOfX = kExperts.find('x');
  for (size_t x = name.find('x', kPlaceOfX); x != name.npos; x = name.find('x', x + 1)) {
    if (name.substr(x - kPlaceOfX).starts_with(kExperts)) return x - kPlaceOfX;
  }
  return name.npos;
}

// ".experts.linear_fc1.weight12": at the end of the name.
std::optional<NumberInName> grouped_expert(std::string_view name, size_t begin) {
  const size_t end = name.find_last_not_of("0123456789") + 1;
  const std::string_view tensor = name.substr(0, end);
  if (end == name.size() || (!tensor.ends_with(".weight") && !tensor.ends_with(".bias")))
    return std::nullopt;
  return name.find(".experts.linear_fc", begin) != name.npos ? number_at(name, end) : std::nullopt;
}

std::string with_number(std::string_view name, const NumberInName& at, uint32_t number) {
  return std::string(name.substr(0, at.begin)) + std::to_string(number) +
         std::string(name.substr(at.end));
}

// `first` and `count` of what the rank holds; from its numbers to the model's, or back.
struct Shift {
  uint32_t first = 0, count = 0;
  bool to_model = true;

  std::optional<uint32_t> operator()(uint32_t number) const {
    if (to_model) return number < count ? std::optional(first + number) : std::nullopt;
    return number >= first && number - first < count ? std::optional(number - first) : std::nullopt;
  }
};

std::optional<std::string> shifted(std::string name, const RankPart& part, bool to_model) {
  const struct {
    std::string_view before;
    LayerRange layers;
  } stacks[] = {{part.divided_stack, part.chunk.layers}, {"mtp.layers.", part.chunk.mtp_layers}};
  for (const auto& [before, layers] : stacks) {
    const bool is_of_it = !before.empty() && name.starts_with(before);
    const auto layer = is_of_it ? number_behind(name, before) : std::nullopt;
    if (!layer) continue;
    const auto number = Shift{layers.first, layers.count, to_model}(layer->number);
    if (!number) return std::nullopt;
    name = with_number(name, *layer, *number);
  }
  if (const auto expert = expert_in(name)) {
    const auto number = Shift{part.experts.first, part.experts.count, to_model}(expert->number);
    if (!number) return std::nullopt;
    name = with_number(name, *expert, *number);
  }
  return name;
}

}  // namespace

std::optional<NumberInName> expert_in(std::string_view name) {
  const size_t begin = find_experts(name);
  if (begin == name.npos) return std::nullopt;
  const auto grouped = grouped_expert(name, begin);
  return grouped ? grouped : number_behind(name, ".experts.local_experts.", begin);
}

std::optional<NumberInName> decoder_layer_in(std::string_view name) {
  constexpr std::string_view kLayers = "decoder.layers.";
  return name.starts_with(kLayers) ? number_behind(name, kLayers) : std::nullopt;
}

ExpertRange experts_on(uint32_t expert_count, uint32_t ep, uint32_t ep_count) {
  if (ep_count == 0 || expert_count % ep_count != 0) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = "args.num_experts"},
                      std::to_string(expert_count) + " experts cannot be divided evenly over " +
                          std::to_string(ep_count) + " expert parallel ranks");
  }
  const uint32_t count = expert_count / ep_count;
  return {ep * count, count};
}

std::optional<std::string> name_in_model(std::string_view name_on_rank, const RankPart& part) {
  const std::string_view own = without_submodel(name_on_rank);
  if (own == kOutputLayer && part.output_is_tied) {
    return std::string(name_on_rank.substr(0, name_on_rank.size() - own.size())) +
           std::string(kWordEmbeddings);
  }
  return shifted(std::string(name_on_rank), part, true);
}

std::optional<std::string> name_on_rank(std::string_view name_in_model, const RankPart& part) {
  const ModelChunk& chunk = part.chunk;
  const std::string_view own = without_submodel(name_in_model);
  if (own == kWordEmbeddings && part.output_is_tied && !chunk.has_embedding && chunk.has_output) {
    return std::string(name_in_model.substr(0, name_in_model.size() - own.size())) +
           std::string(kOutputLayer);
  }
  return shifted(std::string(name_in_model), part, false);
}

}  // namespace optim
