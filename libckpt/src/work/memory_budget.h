#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/execute.h>

namespace ckpt {

// How much memory the buffers of a run take. Each worker has one for the window that it makes, and
// one of the same length to read through.
struct MemoryBudget {
  unsigned threads = 1;
  uint64_t window_bytes = 0;
  uint64_t shared_bytes = 0;  // for what several windows read
  uint64_t count_bytes() const { return 2 * threads * window_bytes + shared_bytes; }
};

// What a run notes down of its copies: the checker's note of a storage, the index of a copy.
// `pieces`: as ExecuteOptions::pieces.
uint64_t bookkeeping_bytes(const Plan& plan, const std::vector<Piece>& pieces);

// Throws InvalidArgument where options.process_bytes_max leaves too little. `bookkeeping_bytes`:
// what the run will note down beside its buffers; `readers`: how many windows at most read the same
// rows, each some columns of them.
MemoryBudget make_memory_budget(const ExecuteOptions& options, uint64_t bookkeeping_bytes = 0,
                                size_t readers = 1);

// Resident memory of this process at its peak, about; 0 where the system does not say.
uint64_t expected_peak_bytes(const MemoryBudget& budget, uint64_t bookkeeping_bytes);

// For reading alone: a buffer a thread. Makes do with the least where little is left.
struct ReadingBudget {
  unsigned threads = 1;
  uint64_t buffer_bytes = 0;
};
ReadingBudget make_reading_budget(const ExecuteOptions& options);

}  // namespace ckpt
