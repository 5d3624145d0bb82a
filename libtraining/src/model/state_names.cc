#include "model/state_names.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include <optim/rule_table.h>
#include <training/key_kind.h>

namespace optim {
namespace {

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

}  // namespace

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

}  // namespace optim
