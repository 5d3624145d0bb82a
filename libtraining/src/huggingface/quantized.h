#pragma once

#include <nlohmann/json.hpp>

#include <memory>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/checkpoint.h>
#include <ckpt/payload_source.h>
#include <ckpt/target.h>
#include <training/opened_training.h>

#include "huggingface/export.h"

namespace optim {

// The tensors of a Hugging Face folder, those of few bits as products with their scales: W of
// W and W_scale_inv (fp8), W of W_blocks and W_scales (mxfp4), in the type of config.json.
struct FolderTensors {
  ckpt::Catalog catalog;
  std::shared_ptr<const ckpt::PayloadSource> products;  // null: there are none
  std::vector<ckpt::NotCarried> changed;
};

// Throws Unsupported for another way to quantise.
FolderTensors folder_tensors(const OpenedTraining& folder, const nlohmann::json& config);

// Whether --dtype asks for it: takes that rule off. Throws InvalidArgument for one of some keys.
bool take_fp8_blocks(std::vector<ckpt::TypeRule>& types);

// Weights of linear layers as e4m3 with float32 scales of 128 x 128 blocks, KEY and KEY_scale_inv,
// and what config.json says of them, as DeepSeek's own files have it. `source` is what the tensors
// lie in, and must outlive the result. Throws Unsupported for experts that stand in one
// tensor, and for no source.
void quantize(const ckpt::Checkpoint* source, HuggingFaceExport& made);

}  // namespace optim
