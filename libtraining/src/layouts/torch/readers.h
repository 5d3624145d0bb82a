#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <training/contents.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include "args/run_args.h"

// Reads `torch` folders.
namespace optim {

// `filing`: of all optimizers of the chain.
FiledState read_torch_folder(const OpenedTraining& checkpoint, const Filing& filing,
                             const ReadOptions& options);

// Whether ranks have files of a LayerWise optimizer of their own.
bool has_rank_files(const OpenedTraining& checkpoint);
// Whether any of them has one of a DistributedOptimizer.
bool has_flat_files(const OpenedTraining& checkpoint);
// Of a run with such an optimizer, but saved without any state of it.
bool is_model_alone(const OpenedTraining& checkpoint);

// Whether rank files of a LayerWise optimizer may belong to a model of which some parameters are
// frozen, which then have neither master nor state: they hold fewer masters than the model has
// weights, and each has the shape of a weight of its own. Reads no payload. Of one model file.
bool may_have_frozen_params(const OpenedTraining& checkpoint);

// The weights that no master rounds to, where every master rounds to one; nullopt where that does
// not say which are frozen. Reads all masters and weights.
std::optional<std::set<std::string>> find_frozen_params(const OpenedTraining& checkpoint);

// Tensor-, pipeline- and expert-parallel rank of a folder.
struct FolderRank {
  uint32_t tensor = 0, pipeline = 0, expert = 0;
};
// nullopt for names that do not have the parts that the sizes of the run call for.
std::optional<FolderRank> folder_rank(std::string_view folder, const RunArgs& args);

// The model in Megatron's rank folders, mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt: each tensor
// once, parts of tensor-parallel ranks joined and copies left out, layers numbered
// over all pipeline stages.
Contents join_rank_folders(const OpenedTraining& checkpoint);

}  // namespace optim
