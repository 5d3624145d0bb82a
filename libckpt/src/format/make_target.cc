#include <ckpt/error.h>

#include "format/plain_target.h"

namespace ckpt {
namespace {

// Megatron's folders carry more than a state dict: what they lose is known to liboptim only.
void refuse_megatron(const Checkpoint& source) {
  const Catalog& catalog = source.catalog();
  const bool rank_folders = catalog.format == Format::Torch && source.document("") == nullptr &&
                            !catalog.files.empty() && catalog.files[0].path.starts_with("mp_rank_");
  if (rank_folders || source.document("common.pt") != nullptr) {
    throw Error(ErrorCode::Unsupported, {.file = source.folder().string(), .key = {}},
                "a Megatron checkpoint is no plain state dict");
  }
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
