#include <ckpt/error.h>

#include "format/plain_target.h"

namespace ckpt {
namespace {

// Megatron's folders carry more than a state dict: what they lose is known to liboptim only.
void refuse_megatron(const Checkpoint& source) {
  if (!source.is_megatron()) return;
  const bool common_missing =
      source.catalog().format == Format::TorchDist && source.document("common.pt") == nullptr;
  throw Error(ErrorCode::Unsupported, {.file = source.folder().string(), .key = {}},
              common_missing
                  ? "a Megatron checkpoint without common.pt: it is missing, or the common "
                    "state is kept in the store, which is not handled"
                  : "a Megatron checkpoint without a LayerWise optimizer is not handled");
}

}  // namespace

Target make_target(const Checkpoint& source, const TargetSpec& spec) {
  refuse_megatron(source);
  const Format format = source.catalog().format;
  if (format == Format::Torch && spec.format == Format::TorchDist) {
    return plain_torch_dist_target(source);
  }
  if (format == Format::TorchDist && spec.format == Format::Torch) {
    return plain_torch_target(source);
  }
  throw Error(ErrorCode::Unsupported, {.file = source.folder().string(), .key = {}},
              "converting " + std::string(name(format)) + " to " + std::string(name(spec.format)) +
                  " is not supported");
}

}  // namespace ckpt
