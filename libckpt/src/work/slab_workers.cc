#include "work/slab_workers.h"

#include <algorithm>
#include <vector>

#include <ckpt/run_jobs.h>

#include "work/memory_budget.h"

namespace ckpt {
namespace {

constexpr uint64_t kSlabUnitBytes = 4096;
constexpr uint64_t kSlabBytesMax = uint64_t{4} << 20;  // more makes no read faster

ReadingBudget make_slab_budget(const ExecuteOptions& options) {
  if (options.process_bytes_max != 0) return make_reading_budget(options);
  const unsigned threads = thread_count(options.threads);
  const uint64_t share = options.memory_bytes_max / threads / kSlabUnitBytes * kSlabUnitBytes;
  return {threads, std::clamp(share, kSlabUnitBytes, kSlabBytesMax)};
}

}  // namespace

void run_with_slabs(size_t job_count, const ExecuteOptions& options,
                    const std::function<void(size_t job, std::span<std::byte> slab)>& work) {
  const auto [threads, bytes] = make_slab_budget(options);
  std::vector<std::vector<std::byte>> slabs(threads);
  run_jobs(job_count, threads, [&, bytes = bytes](size_t job, unsigned worker) {
    slabs[worker].resize(bytes);  // once per thread, and only by threads that get a job
    work(job, slabs[worker]);
  });
}

}  // namespace ckpt
