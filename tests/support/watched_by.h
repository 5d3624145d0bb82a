#pragma once

#include <ckpt/execute.h>

#include "state/passing_proof.h"

namespace test {

// A copy that a proof watches, in the least memory: many windows. 0 threads: one for each core.
inline ckpt::ExecuteOptions watched_by(optim::PassingProof& proof, unsigned threads = 0) {
  ckpt::ExecuteOptions options;
  options.threads = threads;
  options.memory_bytes_max = 0;
  options.on_read = [&proof](const auto& located, uint64_t offset_bytes, auto bytes) {
    proof.note(located, offset_bytes, bytes);
  };
  return options;
}

}  // namespace test
