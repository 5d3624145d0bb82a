#include <training/megatron_folders.h>

namespace optim {

bool is_megatron(const ckpt::Checkpoint& checkpoint) {
  const ckpt::FolderConvention* const convention = checkpoint.convention();
  return convention != nullptr && convention->framework == kMegatronFolders.framework;
}

}  // namespace optim
