#pragma once

#include <memory>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/payload_source.h>
#include <ckpt/target.h>
#include <training/opened_training.h>
#include <nlohmann/json.hpp>

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

}  // namespace optim
