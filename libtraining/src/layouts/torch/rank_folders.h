#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <training/contents.h>
#include <training/opened_training.h>

#include "args/run_args.h"

// The model in Megatron's rank folders, mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt: each tensor
// once.
namespace optim {

// Tensor-, pipeline- and expert-parallel rank of a folder.
struct FolderRank {
  uint32_t tensor = 0, pipeline = 0, expert = 0;
};
// nullopt for names that do not have the parts that the sizes of the run call for.
std::optional<FolderRank> folder_rank(std::string_view folder, const RunArgs& args);

// The model's tensors, parts of tensor-parallel ranks joined and copies left out, layers numbered
// over all pipeline stages.
Contents join_rank_folders(const OpenedTraining& checkpoint);

}  // namespace optim
