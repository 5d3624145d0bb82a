#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <training/model_facts.h>

#include "parallel/rank_grid.h"

// Which files the ranks of a grid write in a `torch` folder:
//
//   mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt         the rank that is first of those that share
//                                                     its experts; since core 0.19 also the first
//                                                     of those that share its other parameters
//   mp_rank_TT[_PPP][_EEE]/layer_wise_optimizer_D.pt  each rank, D its dense data-parallel rank
//                                                     without context parallelism
//   mp_rank_TT[_PPP][_EEE]/distrib_optim.pt          of a DistributedOptimizer: the first of the
//                                                    ranks that share its buffers
//
// TT, PPP, EEE: tensor, pipeline (of more than one stage) and expert (of more than one) rank.
// Source: get_checkpoint_name and save_checkpoint of megatron/training/checkpointing.py.
namespace optim {

inline constexpr std::string_view kModelFileName = "model_optim_rng.pt";
inline constexpr std::string_view kFlatFileName = "distrib_optim.pt";

struct WorldRank {
  uint32_t rank = 0;
  RankCoordinates at;
  std::string folder;                  // "mp_rank_00_000/"
  bool writes_model = false;           // of several that write one file, which are alike, the first
  bool writes_since_core_019 = false;  // only there: before, nobody wrote this folder's model
  std::string model_file() const { return folder + std::string(kModelFileName); }
  std::string flat_file() const { return folder + std::string(kFlatFileName); }
  std::string optimizer_file() const {
    return folder + "layer_wise_optimizer_" + std::to_string(at.dp) + ".pt";
  }
};

// Of a model chunk in model_optim_rng.pt: model, or model0, model1, ... where a stage has several.
std::string model_key(const PipelineSplit& split, size_t chunk);

// In the order of their world ranks. Throws as RankGrid does.
std::vector<WorldRank> ranks_of(const RunGrid& grid);

// Whether a rank of these coordinates is one that writes its folder's model in some release.
bool may_write_model(const RankCoordinates& at);

struct RankFilesOf {
  bool is_layer_wise = false;
  bool is_before_core_019 = false;
};
// Of the ranks, two that write to one file, or a folder whose model no rank writes: Megatron loses
// state of such grids in `torch`. Empty where there is none.
std::string loss_in_rank_files(const std::vector<WorldRank>& ranks, RankFilesOf which);

}  // namespace optim
