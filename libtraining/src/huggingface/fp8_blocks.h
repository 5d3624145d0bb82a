#pragma once

#include <ckpt/checkpoint.h>

#include "huggingface/export.h"

namespace optim {

// Whether --dtype asks for it: takes that rule off. Throws InvalidArgument for one of some keys.
bool take_fp8_blocks(std::vector<ckpt::TypeRule>& types);

// Weights of linear layers as e4m3 with float32 scales of 128 x 128 blocks, KEY and KEY_scale_inv,
// and what config.json says of them, as DeepSeek's own files have it. `source` is what the tensors
// lie in, and must outlive the result. Throws Unsupported for experts that stand in one
// tensor, and for no source.
void quantize(const ckpt::Checkpoint* source, HuggingFaceExport& made);

}  // namespace optim
