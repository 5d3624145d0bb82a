#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include <ckpt/execute.h>
#include <optim/layer_wise_checkpoint.h>

namespace optim {

// What a proof takes of memory: eight threads with pieces and the buffers of two streams each.
inline constexpr uint64_t kProofBytesMax = uint64_t{32} << 20;

// prove_assignment() beside the copying of the same bytes, which must not be published before
// wait() has returned. A failure stops the copying.
class BackgroundProof {
 public:
  // View and source must outlive it.
  BackgroundProof(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source,
                  const ckpt::ExecuteOptions& options, const ckpt::Share& share);

  // What the copying must obey: the caller's stop, and this proof's.
  std::stop_token stop_token() const { return stop_.get_token(); }

  // Throws what prove_assignment() threw. Neither is for several threads at a time.
  const std::vector<AmbiguousParam>& wait();
  void cancel();  // throws what it had thrown before

 private:
  void run(const std::function<std::vector<AmbiguousParam>()>& prove);

  std::stop_source stop_;
  std::stop_callback<std::function<void()>> on_callers_stop_;
  std::vector<AmbiguousParam> ambiguous_;
  std::exception_ptr error_;
  bool is_cancelled_ = false;
  std::jthread thread_;  // the last member: the others are there while it runs
};

}  // namespace optim
