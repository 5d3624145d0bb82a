#pragma once

#include <filesystem>
#include <vector>

#include <training/verify.h>

namespace optim {

// Of LayerWise rank files that context-parallel ranks wrote to one name: a note for each parameter
// whose master and state are lost, beside the damage that this is. Which rank's are left is told by
// the shapes in the file, where it can be read. Empty where the files do not tell who owned what.
// `path`: a root, or an iteration's folder.
std::vector<ckpt::Finding> find_lost_params(const std::filesystem::path& path,
                                            ckpt::OpenOptions options);

// Whether context-parallel ranks share rank files, as args say.
bool may_be_overwritten(const OpenedTraining& checkpoint);

}  // namespace optim
