#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ckpt/target.h>
#include <training/convert.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include "convert/write_named.h"
#include "huggingface/export.h"

// What lies beside a checkpoint, on its way to a target.
namespace optim {

// Adds copies of what Megatron Bridge puts there. `folder_name`: of the target, where it is a root.
void carry_files_beside(const OpenedTraining& source, const LayerWiseTargetSpec& spec,
                        const std::string& folder_name, ckpt::Target& target);

// Adds files below a folder: "release/".
void add_files(const std::vector<ckpt::TargetFile>& files, const std::string& folder,
               ckpt::Target& target);

// Lists files of the source that the target has no place for. `used`: how names end of files that
// it was made of; empty: none.
void list_files_beside(const OpenedTraining& source, ckpt::Target& target,
                       std::string_view used = {});

// A model as safetensors beside copies of what is beside the source: config.json, a tokenizer.
struct WrittenFolder {
  std::vector<HuggingFaceExport::Tensor> tensors;
  std::vector<ckpt::NotCarried> not_carried = {};
};
ConvertReport write_folder(Job job, WrittenFolder folder, const ConvertOptions& options);

}  // namespace optim
