#include "report/loss_scale.h"

#include <algorithm>

#include <ckpt/error.h>
#include <training/value_at.h>

#include "args/common_state.h"
#include "state/object_tensors.h"

namespace optim {
namespace {

constexpr std::string_view kScale = "/optimizer/grad_scaler/scale";

bool is_one_number(const ckpt::TensorEntry& tensor) {
  return tensor.dtype == ckpt::DType::Float32 && ckpt::element_count(tensor.shape) == 1;
}

// Of `torch` files, and of common.pt.
std::optional<ckpt::TensorEntry> listed_scale(const OpenedTraining& checkpoint) {
  const auto& tensors = checkpoint.catalog().tensors;
  const auto found = std::ranges::find_if(tensors, [](const ckpt::TensorEntry& tensor) {
    return tensor.key.ends_with("/grad_scaler/scale") && is_one_number(tensor);
  });
  return found == tensors.end() ? std::nullopt : std::optional(*found);
}

// Of the common state that lies in the store.
std::optional<ckpt::TensorEntry> stored_scale(const OpenedTraining& checkpoint) {
  const CommonState* const common = checkpoint.common_state();
  if (!common || common->key.empty()) return std::nullopt;
  const auto value = value_at(common->document->tree.root(), kScale);
  if (!value || !ckpt::as_tensor(*value)) return std::nullopt;
  const std::vector<ckpt::TensorEntry> tensors =
      tensors_of_object(*common->document, *value, common->key);
  const bool is_there = tensors.size() == 1 && is_one_number(tensors[0]);
  return is_there ? std::optional(tensors[0]) : std::nullopt;
}

}  // namespace

std::optional<double> loss_scale_of(const OpenedTraining& checkpoint) {
  try {
    auto tensor = listed_scale(checkpoint);
    if (!tensor) tensor = stored_scale(checkpoint);
    if (!tensor) return std::nullopt;
    return static_cast<double>(checkpoint.read_as<float>(*tensor).front());
  } catch (const ckpt::Error&) {
    return std::nullopt;  // what is wrong with it is the status's to say
  }
}

}  // namespace optim
