#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <training/opened_training.h>
#include <training/verify.h>

namespace optim {

// Of a `torch` iteration folder whose names are not known: whether the files are there that the
// ranks of its layout write, and whether the rank files of a LayerWise optimizer hold a master for
// each weight. Adds to findings, not_checked and not_proven.
void check_rank_folders(const OpenedTraining& checkpoint, VerifyReport& report);

// The files that the ranks of a `torch` iteration folder write and that are not there, sorted. None
// where it is not known how the ranks were numbered.
std::vector<std::string> missing_rank_files(const OpenedTraining& checkpoint);

// A rank file that cannot be read, where context-parallel ranks have written it at once. nullopt
// where it was not that. `path` was opened.
std::optional<ckpt::Finding> find_overwritten(const std::filesystem::path& path,
                                              const ckpt::Error& error, const ckpt::Limits& limits);

}  // namespace optim
