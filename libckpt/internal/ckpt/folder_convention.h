#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace ckpt {

// What programs are known to put beside a checkpoint; nothing here reads it.
struct Companion {
  std::string_view name;  // a glob: "train_dataloader_dprank*.pt"
  std::string_view what;  // "the tokenizer's files"
};

// How a training framework lays out the folders around the formats, as data: libckpt knows none by
// itself (libtraining has Megatron's). All fields are set, and outlive what is opened with them.
struct FolderConvention {
  std::string_view framework;      // in errors: "Megatron"
  std::string_view commands_hint;  // what works on its checkpoints where a conversion does not

  // A root: folders of iterations, and a file that names one of them, in decimal digits, or a
  // folder without a number.
  std::string_view tracker;
  std::string_view unnumbered;        // "release"
  std::string_view iteration_prefix;  // "iter_": a number follows
  size_t iteration_digits = 1;        // of the number, at least; 0: as many as there are

  // Format torch: folders of torch.save files, one a rank, that are one checkpoint.
  std::string_view rank_folder_prefix;
  std::string_view stray_rank_file_prefix;  // files of ranks that lie outside of such folders
  std::string_view data_loader_prefix;      // files in such folders beside any format

  // In an iteration, where it holds no files of a format itself: the folder that does, if this one
  // is beside it.
  std::string_view state_folder, beside_state_folder;

  // Format torch_dist.
  std::string_view common_file;   // torch.save of what is not sharded
  std::string_view backend_file;  // JSON that names the format: {backend_key: "torch_dist"}
  std::string_view backend_key;
  std::string_view backend_hint;   // what to do where it names another
  std::string_view common_key;     // of backend_file where there is a common_file
  std::string_view manifest_hint;  // who reads an integrity.json that is not understood

  // What a conversion promised of a root or a folder; who checks it knows the convention.
  std::string_view proof_file;

  std::span<const Companion> companions;
};

}  // namespace ckpt
