#include "execute/work_meter.h"

#include <ckpt/error.h>

namespace ckpt {

void WorkMeter::stop_if_requested() const {
  if (options_.stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
}

void WorkMeter::advance(uint64_t bytes) {
  stop_if_requested();
  const std::scoped_lock lock(mutex_);
  progress_.done_bytes += bytes;
  if (options_.on_progress) options_.on_progress(progress_);
}

}  // namespace ckpt
