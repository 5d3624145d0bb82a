#pragma once

#include <string>
#include <vector>

#include <training/convert.h>

#include "convert/write_named.h"
#include "huggingface/export.h"

namespace optim {

// A model as safetensors beside copies of what is beside the source: config.json, a tokenizer.
struct WrittenFolder {
  std::vector<HuggingFaceExport::Tensor> tensors;
  std::vector<ckpt::NotCarried> not_carried = {};
};
ConvertReport write_folder(Job job, WrittenFolder folder, const ConvertOptions& options);

}  // namespace optim
