#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/folder.h>
#include <ckpt/verify.h>
#include <training/opened_training.h>

#include "args/run_args.h"

// The context-parallel ranks of a data-parallel rank write a LayerWise optimizer's state to one
// file name in format torch: only the last one's is left. Nothing can mend it.
namespace optim {

inline constexpr std::string_view kRankFileStart = "layer_wise_optimizer_";
inline constexpr const char* kOverwritten = "context-parallel ranks overwrote each other's file";
std::string overwritten_hint(const RunArgs& args);

// A rank file that cannot be read, where context-parallel ranks have written it at once. nullopt
// where it was not that. `path` was opened.
std::optional<ckpt::Finding> find_overwritten(const std::filesystem::path& path,
                                              const ckpt::Error& error, const ckpt::Limits& limits);

// Of LayerWise rank files that context-parallel ranks wrote to one name: a note for each parameter
// whose master and state are lost, beside the damage that this is. Which rank's are left is told by
// the shapes in the file, where it can be read. Empty where the files do not tell who owned what.
// `path`: a root, or an iteration's folder.
std::vector<ckpt::Finding> find_lost_params(const std::filesystem::path& path,
                                            ckpt::OpenOptions options);

// Whether context-parallel ranks share rank files, as args say.
bool may_be_overwritten(const OpenedTraining& checkpoint);

// The local disk without rank files of optimizers: what is left out need not be readable.
std::shared_ptr<const ckpt::Folder> model_folder(const std::filesystem::path& path);

}  // namespace optim
