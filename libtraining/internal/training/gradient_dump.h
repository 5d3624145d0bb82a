#pragma once

#include <filesystem>
#include <vector>

#include <ckpt/limits.h>
#include <training/export.h>
#include <training/opened_training.h>
#include <training/training_state.h>

// The gradients that Megatron saves with --save-wgrads-interval, a folder of each iteration with a
// torch.save file of each rank that is first of those that share its experts:
//
//   SAVE/wgrads/iter_0000004/mp_rank_TT[_PPP][_EEE].pth
//     {model_chunk0: {NAME: main_grad}, model_chunk1: ...}
//
// A main_grad has the shape of the rank's part of its parameter, is reduced over data-parallel
// ranks, not clipped, and times the loss scale where there is one. Names are those of the rank, as
// in its model.
// Source: train_step() of megatron/training/training.py, save_grads() of checkpointing.py.
namespace optim {

// Whether a file of this name is a rank's in such a folder.
TRAINING_EXPORT bool is_gradient_file(const std::filesystem::path& file);

// Opens the folder of an iteration; to Checkpoint::open a rank's file is a folder that holds it.
TRAINING_EXPORT OpenedTraining open_gradient_dump(const std::filesystem::path& folder,
                                                  const ckpt::Limits& limits);

// The gradients of the parameters of `state`, in their order, whole, by the rules that join the
// parts of its weights; null: of one that requires none. `dump`: saved at the
// parallel sizes of `state`. Reads only what ranks hold copies of. Throws NotFound for a
// rank's file that is missing; Corrupt, with file and key, for files of no rank, names that no
// parameter of the rank has, parts and parameters that are missing, and copies that differ.
TRAINING_EXPORT std::vector<TensorRef> join_gradient_dump(const TrainingState& state,
                                                          const OpenedTraining& dump);

}  // namespace optim
