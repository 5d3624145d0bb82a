#include "layout/background_proof.h"

namespace optim {

BackgroundProof::BackgroundProof(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source,
                                 const ckpt::ExecuteOptions& options, const ckpt::Share& share)
    : on_callers_stop_(options.stop, [this] { stop_.request_stop(); }) {
  const auto prove = [&view, &source, share, threads = options.threads] {
    return prove_assignment(view, source, threads, share);
  };
  if (options.threads == 1) {
    run(prove);
  } else {
    thread_ = std::jthread([this, prove] { run(prove); });
  }
}

void BackgroundProof::run(const std::function<std::vector<AmbiguousParam>()>& prove) {
  try {
    ambiguous_ = prove();
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
