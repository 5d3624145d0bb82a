#include <training/megatron_folders.h>

namespace optim {

ckpt::Checkpoint open_checkpoint(const std::filesystem::path& path, ckpt::OpenOptions options) {
  options.convention = &kMegatronFolders;
  return ckpt::Checkpoint::open(path, options);
}

bool is_megatron(const ckpt::Checkpoint& checkpoint) {
  const ckpt::FolderConvention* const convention = checkpoint.convention();
  return convention != nullptr && convention->framework == kMegatronFolders.framework;
}

}  // namespace optim
