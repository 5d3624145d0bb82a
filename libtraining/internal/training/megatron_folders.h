#pragma once

#include <ckpt/checkpoint.h>
#include <ckpt/folder_convention.h>

namespace optim {

inline constexpr ckpt::Companion kMegatronCompanions[] = {
    {"run_config.yaml", "the configuration of a Megatron Bridge run"},
    {"train_state.pt", "the progress of a Megatron Bridge run: steps, consumed samples"},
    {"latest_train_state.pt", "the progress of a Megatron Bridge run: steps, consumed samples"},
    {"train_dataloader_dprank*.pt", "the data loader state of one data-parallel rank"},
    {"tokenizer", "the tokenizer's files"},
    {"context", "NeMo's description of model and trainer"},
    {"modelopt_state", "NVIDIA ModelOpt's state: how the model was quantised or pruned"},
    {"modelopt_run_config.yaml", "the configuration of a run with NVIDIA ModelOpt"},
    {"wgrads", "weight gradients that Megatron was told to save"},
    {"dgrads", "activation gradients that Megatron was told to save"},
    {"progress.txt", "Megatron's log of its saves"},
    {"tensorboard", "training curves of the run"},
    {"wandb", "training curves of the run"},
};

// What Megatron-LM and Megatron-Core call their files and folders.
inline constexpr ckpt::FolderConvention kMegatronFolders = {
    .framework = "Megatron",
    .commands_hint = "ckpt-inspect ls, show, tree, groups, hash, diff and verify work on it",
    .tracker = "latest_checkpointed_iteration.txt",
    .unnumbered = "release",
    .iteration_prefix = "iter_",
    .iteration_digits = 7,
    .rank_folder_prefix = "mp_rank_",
    .stray_rank_file_prefix = "layer_wise_optimizer_",
    .data_loader_prefix = "train_dataloader_dprank",
    .state_folder = "weights",  // NeMo 2
    .beside_state_folder = "context",
    .common_file = "common.pt",
    .backend_file = "metadata.json",
    .backend_key = "sharded_backend",
    .backend_hint =
        "load it with the Megatron-Core that wrote it, and save it with --ckpt-format "
        "torch_dist",
    .common_key = "common_backend",
    .manifest_hint = "whoever wrote it checks it: Megatron-Core with --verify-integrity",
    .proof_file = "shardwise-proof.json",
    .companions = kMegatronCompanions,
};

// Written by Megatron, as Checkpoint::convention() tells.
bool is_megatron(const ckpt::Checkpoint& checkpoint);

}  // namespace optim
