#pragma once

#include <filesystem>

#include <ckpt/staging.h>

#include "publish/write_job.h"

namespace ckpt {

// Throws Unsupported for what a destination in an object store cannot be asked for.
void refuse_for_store(const ConversionSource& source, const ConvertOptions& options);

// How much of a file is written into an object store at a time, and by how many threads.
ExecuteOptions options_for_store(const Plan& plan, ExecuteOptions options);

// Writes all of a job into an object store (StoreStaging), in the order in which write_part() and
// publish_parts() do it in a folder, and throws what they throw.
void write_into_store(const JobRun& run, const std::filesystem::path& destination,
                      const StagingOptions& options);

}  // namespace ckpt
