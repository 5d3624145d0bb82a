#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <ckpt/limits.h>
#include <training/opened_training.h>
#include <training/repair.h>

namespace optim {

// The local disk, where a torch_dist folder has the common.pt of another one. Throws as
// open_checkpoint() for what is no checkpoint, Unsupported for one without common.pt.
std::shared_ptr<const ckpt::Folder> with_common_of(const std::filesystem::path& other,
                                                   const ckpt::Limits& limits);

// Why the common state of a torch_dist folder cannot be used; nullopt where it can be, or where the
// path is something else. Throws what is wrong with the rest of it.
std::optional<std::string> fault_of_common_state(const std::filesystem::path& path,
                                                 const FindRepairsOptions& options);

// The iteration that a common state is of, where it is another one than its folder's.
struct OtherIteration {
  int64_t stated = 0, of_folder = 0;
};
std::optional<OtherIteration> other_iteration(const OpenedTraining& checkpoint);

}  // namespace optim
