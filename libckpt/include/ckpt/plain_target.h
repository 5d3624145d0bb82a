#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/key_pattern.h>
#include <ckpt/target.h>

namespace ckpt {

// A plain state dict to be written in any format.

// Which keys are carried, and under which names.
struct KeyRules {
  KeySelection selection;
  std::vector<KeyRename> renames;  // the first that fits counts
  bool empty() const { return selection.is_everything() && renames.empty(); }

  // To be called with all keys that there are before the functions below. Throws InvalidArgument
  // where no key is left, NotFound where one that is to be included or renamed is not there.
  void resolve(std::span<const KeyName> keys);
  // Of those keys, how many are not accepted.
  uint64_t left_out_count() const { return left_out_count_; }
  bool accepts(std::string_view key) const { return selection.accepts({}, key); }
  std::string renamed(std::string_view key) const;

 private:
  uint64_t left_out_count_ = 0;
};

class Checkpoint;
// Whether it is files of FSDP's ranks, which can be written for another number of them.
bool holds_rank_files(const Checkpoint& source);
struct TargetSpec {
  Format format = Format::Torch;
  bool as_folder = false;  // safetensors: model.safetensors, or several files and their index
  KeyRules keys;
  std::vector<TypeRule> types = {};  // by keys of the source
  // torch: not one file, but those of so many ranks of FSDP, as verl's ranks save them; of 0 none.
  uint64_t ranks = 0;
  // Of a source that does not say where its ranks' tensors were: the device type of their mesh.
  std::string mesh_device = "cuda";
  uint64_t file_bytes_max = uint64_t{5'000'000'000};  // of tensors in one of several safetensors
};
// A torch.save file, a DCP folder or safetensors as any of them, flattened and unflattened as
// torch.distributed.checkpoint does it. What follows a FolderConvention is refused (Unsupported):
// its folders hold more than a state dict. Throws InvalidArgument where the rules leave nothing or
// give two values one key. The target points into the source's catalog: the source must outlive it.
CKPT_EXPORT Target make_target(const Checkpoint& source, const TargetSpec& spec);
// Those that it writes.
std::vector<Format> target_formats();

}  // namespace ckpt
