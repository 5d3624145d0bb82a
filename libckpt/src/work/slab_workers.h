#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include <ckpt/execute.h>

namespace ckpt {

// run_jobs() with a buffer per thread: the same number of bytes for all, a multiple of 4096, all of
// them together at most options.memory_bytes_max (but never under 4096 bytes each), and what
// options.process_bytes_max leaves, with fewer threads where that is little.
void run_with_slabs(size_t job_count, const ExecuteOptions& options,
                    const std::function<void(size_t job, std::span<std::byte> slab)>& work);

}  // namespace ckpt
