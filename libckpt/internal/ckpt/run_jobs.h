#pragma once

#include <cstddef>
#include <functional>

namespace ckpt {

// `requested`, or one thread per core where it is 0.
unsigned thread_count(unsigned requested);

// Calls run(job, worker) for every job in [0, job_count): in the order of the jobs, on at most
// `threads` threads, of which the caller's is one; worker < threads names the thread. Fewer run
// them where no more can be started. After the first exception no further job starts; when all
// that were running have ended, the exception of the lowest job is thrown on, so that it is the
// same one however many threads there are.
using Job = std::function<void(size_t job, unsigned worker)>;
void run_jobs(size_t job_count, unsigned threads, const Job& run);

}  // namespace ckpt
