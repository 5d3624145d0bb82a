#include "recording.h"

#include <ckpt/error.h>
#include <optim/rule_table.h>
#include <training/opened_training.h>
#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace optim {
namespace {

std::string shape_text(const ckpt::Extents& shape) {
  std::string text;
  for (const uint64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::string types_text(const std::vector<ckpt::DType>& types) {
  std::string text;
  for (const ckpt::DType type : types) {
    text += (text.empty() ? "" : " or ") + std::string(name(type));
  }
  return text;
}

}  // namespace

TensorForm form_of(const ParamInfo& param, std::initializer_list<ckpt::DType> types) {
  return {{param.shape.begin(), param.shape.end()}, types};
}

std::optional<StepKey> parse_step_key(std::string_view prefix, std::string_view key) {
  constexpr size_t kDigitsMax = 15;  // more cannot be a step number
  const size_t dot = key.find('.');
  if (!key.starts_with(prefix) || dot == key.npos || dot <= prefix.size()) return std::nullopt;
  const std::string_view digits = key.substr(prefix.size(), dot - prefix.size());
  const bool has_leading_zero = digits.size() > 1 && digits.front() == '0';
  if (digits.size() > kDigitsMax || has_leading_zero) return std::nullopt;
  int64_t step = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return std::nullopt;
    step = step * 10 + (digit - '0');
  }
  return StepKey{step, key.substr(dot + 1)};
}

bool is_state_key(std::string_view key) {
  const size_t dot = key.find('.');
  if (dot == key.npos) return false;
  constexpr std::array<std::string_view, 3> kOthers = {"model", "fp32_param", "step"};
  const std::string_view kind = key.substr(0, dot);
  return std::ranges::find(kOthers, kind) != kOthers.end() ||
         std::ranges::find(all_states(), kind, &StateSpec::name) != all_states().end();
}

Recording::Recording(std::filesystem::path path, const ckpt::Limits& limits)
    : path_(std::move(path)), checkpoint_(open_checkpoint(path_, {{}, limits})) {}

int64_t Recording::count_steps(const ckpt::Catalog& catalog) const {
  std::map<int64_t, std::string> steps;  // and a key of each
  for (const ckpt::TensorEntry& tensor : catalog.tensors) {
    if (const auto key = parse_step_key("grad", tensor.key)) steps.emplace(key->step, tensor.key);
  }
  int64_t count = 0;
  for (const auto& [step, key] : steps) {
    if (step != count) {
      refuse(key, "expected steps 0, 1, 2, ... without a gap, found no gradient of step " +
                      std::to_string(count));
    }
    ++count;
  }
  return count;
}

const ckpt::TensorEntry& Recording::find(const std::string& key, const TensorForm& form) const {
  return find(catalog(), key, form);
}

const ckpt::TensorEntry& Recording::find(const ckpt::Catalog& catalog, const std::string& key,
                                         const TensorForm& form) const {
  const ckpt::TensorEntry* const found = catalog.find_tensor(key);
  if (found == nullptr) refuse(key, "is missing");
  if (found->shape != form.shape) {
    refuse(key,
           "expected the shape " + shape_text(form.shape) + ", found " + shape_text(found->shape));
  }
  if (std::ranges::find(form.types, found->dtype) == form.types.end()) {
    refuse(key,
           "expected " + types_text(form.types) + ", found " + std::string(name(found->dtype)));
  }
  return *found;
}

void Recording::refuse(const std::string& key, const std::string& problem) const {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = path_.string(), .key = key}, problem);
}

}  // namespace optim
