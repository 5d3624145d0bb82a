#pragma once

#include <string>

#include <ckpt/target.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

// What lies beside a checkpoint, on its way to a target.
namespace optim {

// Adds copies of what Megatron Bridge puts there. `folder_name`: of the target, where it is a root.
void carry_files_beside(const OpenedTraining& source, const LayerWiseTargetSpec& spec,
                        const std::string& folder_name, ckpt::Target& target);

// Lists files of the source that the target has no place for.
void list_files_beside(const OpenedTraining& source, ckpt::Target& target);

}  // namespace optim
