#pragma once

#include <string>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/write_target.h>

#include "io/file.h"
#include "staging/job_record.h"

namespace ckpt {

// Throws InvalidArgument where options ask for something that the target's format cannot hold.
void check_store_options(const Target& target, const ConvertOptions& options);

// All files that a conversion makes in its staging folder, if only for a while.
std::vector<std::string> files_of_output(const Plan& plan, const ConversionSource& source,
                                         const ConvertOptions& options);

// What is done to a torch_dist folder once all of it lies in the staging: compression, and the
// manifest of hashes. `written`: all pieces of all files. Corrects the plan's sizes, and returns
// the files that are new or were replaced, each as one piece.
std::vector<FinishedPiece> finish_store(const Place& staging, const ConvertOptions& options,
                                        std::vector<FinishedPiece> written, Plan& plan);

}  // namespace ckpt
