#include "layout/background_proof.h"

namespace optim {

BackgroundProof::BackgroundProof(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source,
                                 const ckpt::ExecuteOptions& options, const ckpt::Share& share)
    : on_callers_stop_(options.stop, [this] { stop_.request_stop(); }) {
  const ProofOptions proof{options.threads, share, stop_.get_token()};
  const auto prove = [&view, &source, proof] { return prove_assignment(view, source, proof); };
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
    is_cancelled_ = stop_.stop_requested();
    stop_.request_stop();
  }
}

void BackgroundProof::cancel() {
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
  if (error_ && !is_cancelled_) std::rethrow_exception(error_);
}

const std::vector<AmbiguousParam>& BackgroundProof::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(error_);
  return ambiguous_;
}

}  // namespace optim
