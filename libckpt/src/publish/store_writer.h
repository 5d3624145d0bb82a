#pragma once

#include <filesystem>
#include <optional>

#include <ckpt/convert.h>
#include <ckpt/staging.h>
#include <ckpt/write_target.h>

#include "publish/write_job.h"

namespace ckpt {

// Throws Unsupported for what a destination in an object store cannot be asked for.
void refuse_for_store(const ConversionSource& source, const ConvertOptions& options);

// How much of a file is written into an object store at a time, and by how many threads.
ExecuteOptions options_for_store(const Plan& plan, ExecuteOptions options);

struct StoreOrder {
  const WriteJob& job;
  Target& target;  // the job's
  const ConversionSource& source;
  const std::optional<SourceFingerprint>& fingerprint;  // of the source, as WriteJob had it
  const ConvertOptions& options;
  ConvertReport& report;  // receives what was done
};
// Writes all of a job into an object store (StoreStaging), in the order in which write_part() and
// publish_parts() do it in a folder, and throws what they throw.
void write_into_store(const StoreOrder& order, const std::filesystem::path& destination,
                      const StagingOptions& options);

}  // namespace ckpt
