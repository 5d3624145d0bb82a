#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include <ckpt/execute.h>

#include "staging/job_record.h"

namespace ckpt {

struct ReadBackOptions {
  bool cold =
      false;  // from the device: what the system has cached is dropped first, where it can be
  ExecuteOptions execute;  // threads, memory, progress, stop
};

// Reads pieces of files of a staging folder (or of the file itself, where the path of the only one
// is empty) and says which of them are, by their checksum, what was written. One that is not there
// is not.
std::vector<bool> are_as_written(const Place& folder, std::span<const FinishedPiece> pieces,
                                 const ReadBackOptions& options);

[[noreturn]] void throw_not_as_written(const std::filesystem::path& path);

}  // namespace ckpt
