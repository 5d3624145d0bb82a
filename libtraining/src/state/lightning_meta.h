// What Lightning saves in shards: tensors with torch.distributed.checkpoint, the rest in a file.
#pragma once

#include <algorithm>
#include <string_view>

#include <training/opened_training.h>

namespace optim {

// Epoch, step, loops and schedulers; ModelParallelStrategy loads no folder without it
// (lightning.fabric.strategies.model_parallel, 2.6).
inline constexpr const char* kLightningMeta = "meta.pt";

// Whether a folder has Lightning's keys, and not that file.
inline bool lacks_lightning_meta(const OpenedTraining& checkpoint) {
  const auto has_key = [&](std::string_view front) {
    return std::ranges::any_of(
        checkpoint.catalog().tensors,
        [front](const ckpt::TensorEntry& tensor) { return tensor.key.starts_with(front); });
  };
  return checkpoint.catalog().format == ckpt::Format::TorchDist && has_key("state_dict.") &&
         has_key("optimizer_0.state.") &&
         !checkpoint.source().has(checkpoint.folder() / kLightningMeta);
}

}  // namespace optim
