#include "model/tensor_names.h"

#include <algorithm>
#include <charconv>

#include <ckpt/error.h>
#include <ckpt/printed.h>
#include <optim/rule_table.h>
#include <training/contents.h>

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

constexpr std::string_view kContainers[] = {"model", "model_state_dict", "module", "state_dict"};

// Masters of a DistributedOptimizer are called so; elsewhere it is a common word.
bool is_state_or_param(std::string_view step) { return is_state_name(step) || step == "param"; }

// --- optimizer state ---

bool has_number_behind(std::string_view text, std::string_view words) {
  const size_t at = text.find(words);
  return at != text.npos && at + words.size() < text.size() && text[at + words.size()] >= '0' &&
         text[at + words.size()] <= '9';
}

bool is_pointer(const ckpt::TensorEntry& tensor) { return tensor.key.starts_with('/'); }

// A step of a pointer or of a key with dots, as a whole, that is_wanted(step).
bool has_step(const ckpt::TensorEntry& tensor, bool (*is_wanted)(std::string_view step)) {
  const char separator = is_pointer(tensor) ? '/' : '.';
  std::string_view left = tensor.key;
  while (true) {
    const size_t end = left.find(separator);
    if (is_wanted(left.substr(0, end))) return true;
    if (end == left.npos) return false;
    left.remove_prefix(end + 1);
  }
}

std::optional<uint32_t> last_number_behind(std::string_view text, std::string_view words) {
  const size_t at = text.rfind(words);
  if (at == text.npos) return std::nullopt;
  text.remove_prefix(at + words.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

// What torch.get_rng_state() returns: bytes of a Mersenne twister, or of a device's generator.
bool is_generator(const ckpt::TensorEntry& tensor) {
  constexpr uint64_t kTwisterBytes = 5056, kDeviceBytes = 16;
  constexpr std::string_view kDevices[] = {"cpu", "cuda", "npu", "xpu", "mps", "hpu"};
  if (tensor.dtype != ckpt::DType::UInt8 || tensor.shape.size() != 1) return false;
  if (tensor.shape[0] == kTwisterBytes) return true;
  return tensor.shape[0] == kDeviceBytes &&
         std::ranges::any_of(key_steps(tensor.key),
                             [&](const std::string& step) { return is_word_of(step, kDevices); });
}

}  // namespace

std::string unescaped_step(std::string step) {
  for (size_t at = 0; (at = step.find('~', at)) != step.npos; ++at) {
    const char next = at + 1 < step.size() ? step[at + 1] : '\0';
    if (next == '0' || next == '1') step.replace(at, 2, next == '0' ? "~" : "/");
  }
  return step;
}

bool is_number(std::string_view step) {
  return !step.empty() && step.find_first_not_of("0123456789") == step.npos;
}

bool is_state_name(std::string_view step) {
  return is_moment_name(step) || step == "moment1_buffer" || step == "fp32_param";
}

std::vector<std::string> key_steps(std::string_view key) {
  const bool is_pointer = key.starts_with('/');
  if (is_pointer) key.remove_prefix(1);
  std::vector<std::string> steps;
  while (true) {
    const size_t end = key.find(is_pointer ? '/' : '.');
    const std::string step(key.substr(0, end));
    steps.push_back(is_pointer ? unescaped_step(step) : step);
    if (end == key.npos) return steps;
    key.remove_prefix(end + 1);
  }
}

StateName state_name(const ckpt::TensorEntry& tensor, bool is_megatron) {
  if (is_flat_buffer(tensor) || is_coalesced_buffer(tensor)) {
    return {"", key_steps(tensor.key).back()};
  }
  if (is_numbered_master(tensor)) return {"", "fp32_param"};
  const std::vector<std::string> steps = key_steps(tensor.key);
  const auto state = std::ranges::find(steps, "state");
  const auto count = static_cast<size_t>(steps.end() - state);
  const bool is_numbered = count == 3 && is_number(state[1]);  // state.0.exp_avg
  const bool is_named = count >= 3 && !is_numbered;
  if (!is_named) return {"", count >= 3 || is_state_or_param(steps.back()) ? steps.back() : ""};
  const std::span<const std::string> rest(state + 1, steps.end());
  if (is_megatron || is_state_or_param(rest.front())) {
    return {ckpt::joined(rest.subspan(1), "."), rest.front()};
  }
  return {ckpt::joined(rest.first(rest.size() - 1), "."), rest.back()};
}

std::string weight_name(const ckpt::TensorEntry& tensor) {
  if (!tensor.key.starts_with('/')) return tensor.key;
  const std::vector<std::string> steps = key_steps(tensor.key);
  const bool has_container = steps.size() > 1 && is_word_of(steps.front(), kContainers);
  return ckpt::joined(std::span(steps).subspan(has_container ? 1 : 0), ".");
}

KeyKind role_of(const ckpt::TensorEntry& tensor) {
  const bool is_buffer = is_coalesced_buffer(tensor) || is_flat_buffer(tensor);
  if (is_buffer) return KeyKind::OptimizerState;
  const KeyKind kind = kind_of_key(tensor.file, tensor.key);
  if (kind == KeyKind::Model && is_generator(tensor)) return KeyKind::RngState;
  // What is no number is no loss.
  const bool is_number = ckpt::element_count(tensor.shape) == 1;
  return kind == KeyKind::Progress && !is_number ? KeyKind::Model : kind;
}

bool holds_parameters(ckpt::DType dtype) {
  const std::string_view type = ckpt::name(dtype);
  return type.starts_with("float") || type.starts_with("bfloat") || type.starts_with("complex");
}

// --- optimizer state ---

bool is_second_moment_name(std::string_view name) {
  const auto known = std::ranges::find(all_states(), name, &StateSpec::name);
  return name == "max_exp_avg_sq" ||
         (known != all_states().end() && known->kind == StateSpec::Kind::SecondMoment);
}

bool is_moment_name(std::string_view name) {
  const auto known = std::ranges::find(all_states(), name, &StateSpec::name);
  return is_second_moment_name(name) ||
         (known != all_states().end() && known->kind == StateSpec::Kind::FirstMoment);
}

bool is_flat_buffer(const ckpt::TensorEntry& tensor) {
  return tensor.key.find("optimizer.distributed.") != std::string::npos;
}

bool is_coalesced_buffer(const ckpt::TensorEntry& tensor) {
  return tensor.file.ends_with("/distrib_optim.pt");
}

bool is_state_object(const ckpt::ObjectEntry& object) {
  return object.region && object.key.find(".param_state/shard_") != object.key.npos;
}

bool keeps_type(std::string_view param) {
  constexpr std::string_view kEnds[] = {".router.weight", ".router.expert_bias", ".router.qb_beta",
                                        ".A_log", ".dt_bias"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return param.ends_with(end); });
}

bool is_optimizer_step(std::string_view step) {
  return step.find("optimizer") != step.npos || step == "optim" || step == "optims" ||
         step.starts_with("optim_") || step.ends_with("_optim");
}

bool is_named_weight(const ckpt::TensorEntry& tensor) {
  const std::string_view type = ckpt::name(tensor.dtype);
  const bool is_floating = type.starts_with("float") || type.starts_with("bfloat");
  return is_floating && tensor.file.empty() &&
         kind_of_key(tensor.file, tensor.key) != KeyKind::OptimizerState;
}

bool is_state(const ckpt::TensorEntry& tensor) {
  if (is_flat_buffer(tensor)) return false;
  if (is_coalesced_buffer(tensor)) return true;
  if (is_pointer(tensor)) {
    return has_number_behind(tensor.key, "/state/") ||
           has_number_behind(tensor.key, "/fp32_from_fp16_params/");
  }
  return tensor.key.find("optimizer.state.") != std::string::npos ||
         has_step(tensor, [](std::string_view step) {
           return step == "fp32_param" || is_moment_name(step);
         });
}

bool is_numbered_master(const ckpt::TensorEntry& tensor) {
  return tensor.key.find("/fp32_from_fp16_params/") != tensor.key.npos;
}

bool is_second_moment(const ckpt::TensorEntry& tensor) {
  return has_step(tensor, is_second_moment_name);
}

ChainedKey split_chain(std::string_view key) {
  constexpr std::string_view kChained = "chained_";
  if (!key.starts_with(kChained)) return {std::nullopt, key};
  uint32_t number = 0;
  const char* const end = key.data() + key.size();
  const auto [behind, error] = std::from_chars(key.data() + kChained.size(), end, number);
  if (error != std::errc() || behind == end || *behind != '.') return {std::nullopt, key};
  return {number, {behind + 1, end}};
}

std::optional<std::string> master_of(std::string_view key) {
  key = split_chain(key).key;
  for (const std::string_view prefix : {"optimizer.state.fp32_param.", "optimizer.state.param."}) {
    if (key.starts_with(prefix)) return std::string(key.substr(prefix.size()));
  }
  return std::nullopt;
}

std::optional<uint32_t> writer_of(std::string_view path) {
  path.remove_prefix(std::min(path.rfind('/') + 1, path.size()));
  if (path == "model_optim_rng.pt") return 0;
  if (path.starts_with("layer_wise_optimizer_")) return last_number_behind(path, "_");
  if (path.starts_with("__") && path.ends_with(".distcp"))
    return last_number_behind(path.substr(0, path.rfind('_')), "__");
  return std::nullopt;
}

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
