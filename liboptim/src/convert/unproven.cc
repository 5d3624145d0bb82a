#include "convert/unproven.h"

#include <ckpt/error.h>

#include "state/near_masters.h"
#include "state/passing_proof.h"
#include "state/remainders.h"
#include "verify/other_roundings.h"
#include "verify/remainder_shift.h"

namespace optim {

std::string naming_of(const TrainingState& view) {
  const bool is_dealt =
      view.sharding == OptimizerSharding::LayerWise || view.sharding == OptimizerSharding::None;
  return is_dealt ? "the ping-pong deal" : "the order of the flat buffers";
}

std::optional<std::string> why_not_proven(const TrainingState& view,
                                          const ckpt::Checkpoint& source) {
  if (view.chain.empty()) return std::nullopt;
  if (has_remainders(view)) return kWhyRemaindersProveNothing;
  return why_weights_may_differ(source);
}

void check_unproven(const TrainingState& view, const ckpt::Checkpoint& source,
                    const std::stop_token& stop) {
  const std::string displaced = may_be_displaced(view, source);
  if (!displaced.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                      text_of_displaced(displaced),
                      "--model-only carries the weights, which are right");
  }
  require_remainders(view, source, stop);
  if (are_names_computed(view)) require_near_masters(view, source, stop);
}

}  // namespace optim
