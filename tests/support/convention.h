// Folders of a training framework, as tests of libckpt call them: by the names in the samples.
#pragma once

#include <ckpt/checkpoint.h>
#include <ckpt/folder_convention.h>

namespace test {

inline constexpr ckpt::Companion kCompanions[] = {{"tokenizer", "the tokenizer's files"}};

inline constexpr ckpt::FolderConvention kConvention = {
    .framework = "Framework",
    .commands_hint = "its own tools work on it",
    .tracker = "latest_checkpointed_iteration.txt",
    .unnumbered = "release",
    .iteration_prefix = "iter_",
    .iteration_digits = 7,
    .rank_folder_prefix = "mp_rank_",
    .stray_rank_file_prefix = "layer_wise_optimizer_",
    .data_loader_prefix = "train_dataloader_dprank",
    .state_folder = "weights",
    .beside_state_folder = "context",
    .common_file = "common.pt",
    .backend_file = "metadata.json",
    .backend_key = "sharded_backend",
    .backend_hint = "save it as torch_dist",
    .common_key = "common_backend",
    .manifest_hint = "whoever wrote it checks it",
    .proof_file = "proof.json",
    .companions = kCompanions,
};

inline ckpt::Checkpoint open_checkpoint(const std::filesystem::path& path,
                                        const ckpt::Limits& limits = {}) {
  return ckpt::Checkpoint::open(path, {std::nullopt, limits, &kConvention});
}

}  // namespace test
