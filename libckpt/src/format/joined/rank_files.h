#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "format/location/location.h"

namespace ckpt {

// What FSDP's ranks save one by one, as verl names it:
//
//   model_world_size_W_rank_R.pt, optim_..., extra_state_...    R from 0 to W - 1
//
// read as one state: {"model": ..., "optim": ..., "extra_state": ...}, of which DTensors and
// ShardedTensors are put together, and what all ranks have alike is there once. What ranks have of
// their own in extra_state and model is that of rank 0, and of the others at
// {"ranks": {R: {place: value}}}, as are, of all ranks, the states of FSDP1's flat parameters whose
// sizes are not known (flat_states.h), in whose place is None. A file that is missing, ends early,
// was saved by another rank or for another number of ranks, or has another optimizer's state than
// rank 0's lacks something.
bool is_rank_files_folder(const Folder& source, const Location& location);
Contents read_rank_files(const Location& location, const Limits& limits);

struct RankFile {
  std::string_view kind;  // of kRankFileKinds
  uint64_t ranks = 0, rank = 0;
};
inline constexpr std::string_view kRankFileKinds[] = {"model", "optim", "extra_state"};
inline constexpr uint64_t kRanksMax = 1 << 20;
std::optional<RankFile> rank_file(std::string_view name);  // what a name says
std::string name_of(const RankFile& file);

// What DeepSpeed's ranks save under ZeRO 1 to 3, and what ds_to_universal makes of it:
//
//   latest                                          names the folder of one save
//   mp_rank_00_model_states.pt                      the 16-bit model, and the shapes of parameters;
//   zero_pp_rank_R_mp_rank_00_model_states.pt       of ZeRO-3, where each rank has a part
//   [bf16_|fp16_]zero_pp_rank_R_mp_rank_00_optim_states.pt   a part of flat fp32 parameters and
//   states zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt     of a universal checkpoint: whole
//   parameters
//
// read as one state dict of fp32 parameters, in the order and with the values of zero_to_fp32.py,
// and {"optimizer": {"state": {NAME: ...}, "param_groups": ...}, "deepspeed": what else is there}.
// 16-bit weights are left out. Source: DeepSpeed 0.19.8, utils/zero_to_fp32.py,
// checkpoint/ds_to_universal.py, runtime/zero/stage_1_and_2.py and stage3.py.

// A root's `latest` is followed.
std::optional<std::string> deepspeed_tag(const Folder& source, const std::filesystem::path& root);
bool find_deepspeed_folder(const Folder& source, Location& location);
Contents read_deepspeed(const Location& location, const Limits& limits);

}  // namespace ckpt
