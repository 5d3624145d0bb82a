#include "layout/background_proof.h"

namespace optim {

BackgroundProof::BackgroundProof(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source,
                                 const ckpt::ExecuteOptions& options)
    : on_callers_stop_(options.stop, [this] { stop_.request_stop(); }) {
  const unsigned threads = options.threads;
  if (threads == 1) {
    run(view, source, threads);
  } else {
    thread_ = std::jthread([this, &view, &source, threads] { run(view, source, threads); });
  }
}

void BackgroundProof::run(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source,
                          unsigned threads) {
  try {
    ambiguous_ = prove_assignment(view, source, threads);
  } catch (...) {
    error_ = std::current_exception();
    stop_.request_stop();
  }
}

const std::vector<AmbiguousParam>& BackgroundProof::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(error_);
  return ambiguous_;
}

}  // namespace optim
